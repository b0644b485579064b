"""What was last measured of each promise, a line each: written by tests and benches, read by `hearth evidence`.

    HEARTH_FIGURES=bench/figures.jsonl make test-full

Where HEARTH_FIGURES names no file nothing is written: not every run is to be evidence. Knows promises by their id in
`cli/promises.toml`.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path


def record(promise: str, figure: str, command: str) -> None:
    """Note what was measured, and by what, if that is wanted."""
    path = os.environ.get("HEARTH_FIGURES", "")
    if not path:
        return
    at = datetime.now(UTC).isoformat(timespec="seconds")
    line = {"promise": promise, "figure": figure, "command": command, "at": at, "commit": _commit()}
    with Path(path).open("a") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


def _commit() -> str:
    asked = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(
            asked, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
