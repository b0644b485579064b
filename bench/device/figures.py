"""Files of figures. Each file contains figures, the card and versions that they were measured with, and a digest.

A sheet is one file. It is written again with every figure, so that a part that is killed leaves the figures it had.
Each figure carries the card's clocks, power and temperature when it was taken.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

NOT_MEASURED = "not measured"
STATES = ("complete", "running", "failed", "timed out", "wrong", NOT_MEASURED)
MAX_BYTES = 15 << 20
_REQUIRED = {"part", "device", "state", "circumstances", "figures", "headline", "error", "wrong", "digest"}
_VERSIONS = ("torch", "triton", "numpy", "transformers")


class InvalidFigures(Exception):
    """A file of figures is truncated, altered or not complete. The message names the file."""


class WrongResult(Exception):
    """Something computes wrong results. `wrong` has kernel, shape and error of each."""

    def __init__(self, wrong: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(f"{each['kernel']}, {each['shape']}: {each['error']}" for each in wrong)[:3000])
        self.wrong = wrong


class Sheet:
    """The figures of one part."""

    def __init__(self, path: Path, part: str, device: str, seconds: float = 0.0) -> None:
        """`seconds` is the time that the part has."""
        self._path, self._device = path, device
        self._end = time.monotonic() + seconds
        self._content: dict[str, Any] = {
            "part": part, "device": device, "state": "running", "circumstances": _circumstances(device), "figures": {},
            "headline": "", "error": "", "wrong": [],
        }  # fmt: skip
        self._write()

    @property
    def left_s(self) -> float:
        """Seconds that the part has left."""
        return self._end - time.monotonic()

    def add(self, name: str, value: Any) -> None:
        """Store a figure, with the card's state."""
        self._content["figures"][name] = {"value": value, "card": _card_state() if self._device == "cuda" else None}
        self._write()

    def headline(self, text: str) -> None:
        """Add to the line of this part in a table."""
        self._content["headline"] = "; ".join(filter(None, (self._content["headline"], text)))

    def close(self, state: str = "complete", error: str = "", wrong: list[dict[str, Any]] | None = None) -> None:
        self._content |= {"state": state, "error": error[-6000:], "wrong": wrong or []}
        self._write()

    def _write(self) -> None:
        write(self._path, self._content)


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a file of figures, with its digest, in one step."""
    content = content | {"digest": _digest(content)}
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(content, indent=1) + "\n")
    beside.replace(path)


def read(path: Path) -> dict[str, Any]:
    """Return the content of a file. Raises InvalidFigures if it is truncated, altered or incomplete."""
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise InvalidFigures(f"{path.name} is not complete JSON: {error}") from None
    if not isinstance(content, dict) or content.get("digest") != _digest(content):
        raise InvalidFigures(f"{path.name} was altered after it was written")
    missing = _REQUIRED - content.keys()
    if missing or content["state"] not in STATES:
        raise InvalidFigures(f"{path.name} is no file of figures: {', '.join(sorted(missing)) or content['state']}")
    return content


def card_of(content: dict[str, Any]) -> str:
    """Return the short name of the card, such as "h200", or the device."""
    found = re.search(r"\b[A-Z]+[0-9]+[A-Z0-9]*\b", str(content["circumstances"].get("name", "")))
    return found.group().lower() if found else str(content["device"])


def _circumstances(device: str) -> dict[str, Any]:
    """Return the card and the versions of everything that matters."""
    found: dict[str, Any] = {"python": platform.python_version(), "commit": commit(), "is_changed": _is_changed()}
    for name in _VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    if device == "cuda" and (nvml := _nvml()) is not None:
        gpu = _gpu()
        found |= {
            "name": nvml.nvmlDeviceGetName(gpu), "driver": nvml.nvmlSystemGetDriverVersion(),
            "memory_bytes": nvml.nvmlDeviceGetMemoryInfo(gpu).total,
        }  # fmt: skip
    return found | {"card": _card_state() if device == "cuda" else None}


def commit() -> str:
    """Return the commit that is checked out. BENCH_COMMIT names that of a copy without its history."""
    return os.environ.get("BENCH_COMMIT") or _git("rev-parse", "--short=8", "HEAD") or "unknown"


def _is_changed() -> bool:
    return bool(_git("status", "--porcelain", "--untracked-files=no"))


def free_bytes() -> int:
    """Return the free memory of the card, without creating a context."""
    nvml = _nvml()
    return int(nvml.nvmlDeviceGetMemoryInfo(_gpu()).free) if nvml is not None else 0


def _card_state() -> dict[str, float] | None:
    nvml = _nvml()
    if nvml is None:
        return None
    gpu = _gpu()
    queries: dict[str, Callable[[], float]] = {
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
        "power_w": lambda: round(nvml.nvmlDeviceGetPowerUsage(gpu) / 1000, 1),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    }
    found = {}
    for name, query in queries.items():
        try:
            found[name] = float(query())
        except nvml.NVMLError:  # this card does not report it
            continue
    return found


@cache
def _nvml() -> Any:
    """Return the module pynvml, or None if it or the driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # a figure without a card's state is worth more than none
        return None
    return pynvml


@cache
def _gpu() -> Any:
    return _nvml().nvmlDeviceGetHandleByIndex(0)


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps({name: value for name, value in content.items() if name != "digest"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _git(*arguments: str) -> str:
    command = ["git", "-c", "safe.directory=*", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
