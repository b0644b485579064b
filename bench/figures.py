"""Record what tests and benchmarks measure about the promises: one line each, in the file named by HEARTH_FIGURES.

`make figures` (`scripts/measure_promises.py`) collects the lines. Without HEARTH_FIGURES nothing is written: not
every run is evidence. Promises are identified by their id in `scripts/promises.toml`.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path


def record(promise: str, figure: str, command: str) -> None:
    """Record a measured figure and the command that measured it, if HEARTH_FIGURES names a file."""
    path = os.environ.get("HEARTH_FIGURES", "")
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps(line(promise, figure, command), ensure_ascii=False) + "\n")


def line(promise: str, figure: str, command: str) -> dict[str, str]:
    """Return a figure with its time and commit."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {"promise": promise, "figure": figure, "command": command, "at": at, "commit": _commit()}


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
