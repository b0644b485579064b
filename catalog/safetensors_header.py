"""Validation of safetensors files with the header parser that the engine uses, raising the catalog's exceptions."""

from __future__ import annotations

from pathlib import Path

from catalog.errors import PublishError
from weight_files.safetensors_header import HeaderError, read_header


def check_safetensors(path: Path) -> set[str]:
    """Return the names of the tensors in a file. Raises PublishError naming the file and the problem."""
    try:
        return set(read_header(path))
    except HeaderError as error:
        raise PublishError(str(error)) from error
