"""Progress of file transfers on standard error.

A progress bar per file on a terminal, one line per finished file elsewhere, JSON lines with `--json`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnProgress = Callable[[str, int, int], None]  # file, bytes transferred, total bytes

_JSON_INTERVAL_S = 0.5


@contextmanager
def transfer_progress(is_json: bool) -> Iterator[OnProgress]:
    """Yield a function to call after each received piece. Callable from any thread."""
    if is_json:
        yield _json_lines()
    elif sys.stderr.isatty():
        with _bars() as on_progress:
            yield on_progress
    else:
        yield _plain_line


def _json_lines() -> OnProgress:
    last_s = 0.0

    def on_progress(file: str, done_bytes: int, total_bytes: int) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if done_bytes < total_bytes and now_s - last_s < _JSON_INTERVAL_S:
            return
        last_s = now_s
        line = {"file": file, "done_bytes": done_bytes, "total_bytes": total_bytes}
        sys.stderr.write(json.dumps(line) + "\n")

    return on_progress


def _plain_line(file: str, done_bytes: int, total_bytes: int) -> None:
    if done_bytes == total_bytes:
        sys.stderr.write(f"hearth: {file} ({total_bytes} bytes)\n")


@contextmanager
def _bars() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    rows: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True)) as progress:

        def on_progress(file: str, done_bytes: int, total_bytes: int) -> None:
            if file not in rows:
                rows[file] = progress.add_task(file, total=total_bytes)
            progress.update(rows[file], completed=done_bytes)

        yield on_progress
