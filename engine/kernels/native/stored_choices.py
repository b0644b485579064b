"""Stored results of the timed trials between compiled kernels and torch's, see `choice.py`. Does not import torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.kernels.native.library import CACHE, find_library_path

_MARGIN = 1.15  # torch must be faster by this factor
_MAX_TRIALS = 5  # after so many trials on a busy machine, the least times of all are final


@dataclass(frozen=True)
class Times:
    """Least microseconds of the compiled kernel and of torch, for growing amounts of work.

    `is_quiet` is False if the times of the latest trial varied too much to be trusted.
    """

    native: list[float]
    torch: list[float]
    is_quiet: bool
    num_trials: int = 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def is_settled(times: Times) -> bool:
    """Return True if no further trial is needed."""
    return times.is_quiet or times.num_trials >= _MAX_TRIALS


def merge(earlier: Times | None, latest: Times) -> Times:
    """Return the least times of both, because other processes make a trial slower and never faster."""
    if earlier is None or len(earlier.native) != len(latest.native):
        return latest
    native, torch = _least(earlier.native, latest.native), _least(earlier.torch, latest.torch)
    return Times(native, torch, latest.is_quiet, earlier.num_trials + 1)


def choices_path(num_threads: int) -> Path:
    """Return the file with the results for this machine, library and number of threads."""
    return CACHE / f"choices-{_machine_digest(find_library_path())}-{num_threads}.json"


def read_choices(path: Path) -> dict[str, Times]:
    """Return the results by the kernels' names; empty if there are none or they cannot be read."""
    try:
        return {name: Times(**fields) for name, fields in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def stored_choices() -> dict[str, Times]:
    """Return the stored results of this machine and library by the kernels' names.

    If several numbers of threads have been timed, the latest trials are returned.
    """
    library = find_library_path()
    paths = sorted(CACHE.glob(f"choices-{_machine_digest(library)}-*.json"), key=lambda path: path.stat().st_mtime)
    return read_choices(paths[-1]) if paths else {}


def is_native_better(times: Times) -> bool:
    """Return True unless torch is clearly faster on the geometric mean over the amounts of work."""
    ratio = 1.0
    for native, plain in zip(times.native, times.torch, strict=True):
        ratio *= native / plain
    return ratio ** (1 / len(times.torch)) <= _MARGIN


def _least(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [min(pair) for pair in zip(one, other, strict=True)]


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
