"""Stored results of the timed trials between compiled products and torch's, see `choice.py`. Does not import torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from pathlib import Path

from engine.kernels.native.library import CACHE, find_library_path

_MARGIN = 1.15  # torch must be faster by this factor


def choices_path(num_threads: int) -> Path:
    """Return the file with the results for this machine, library and number of threads."""
    return CACHE / f"choices-{_machine_digest(find_library_path())}-{num_threads}.json"


def read_choices(path: Path) -> dict[str, dict[str, list[float]]]:
    """Return microseconds per number of rows by kind and class: of "native" and of "torch". Empty if there are none."""
    try:
        found: dict[str, dict[str, list[float]]] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def stored_choices() -> dict[str, bool]:
    """Return the stored results of this machine and library, by kind and class: True for the compiled product.

    If several numbers of threads have been timed, the latest trial is returned.
    """
    library = find_library_path()
    paths = sorted(CACHE.glob(f"choices-{_machine_digest(library)}-*.json"), key=lambda path: path.stat().st_mtime)
    return {name: is_native_better(times) for name, times in read_choices(paths[-1]).items()} if paths else {}


def is_native_better(microseconds: Mapping[str, list[float]]) -> bool:
    """Return True unless torch's product is clearly faster on the geometric mean over the numbers of rows."""
    ratio = 1.0
    for native, plain in zip(microseconds["native"], microseconds["torch"], strict=True):
        ratio *= native / plain
    return ratio ** (1 / len(microseconds["torch"])) <= _MARGIN


def _machine_digest(library: Path | None) -> str:
    parts = (_cpu_model(), library.name if library else "", importlib.metadata.version("torch"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "CPU part")
    return "\n".join(line for line in lines if line.split(":")[0].strip() in wanted)
