"""Is this a whole and honest safetensors file? Asks the reader that will load it, and answers as the catalog does."""

from __future__ import annotations

from pathlib import Path

from catalog.errors import PublishError
from weight_files.safetensors_header import HeaderError, read_header


def check_safetensors(path: Path) -> set[str]:
    """The names of the tensors in the file. Raises PublishError with the file's name and what is wrong."""
    try:
        return set(read_header(path))
    except HeaderError as error:
        raise PublishError(str(error)) from error
