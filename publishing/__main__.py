"""The process that publishes one model for a gateway: `python -m publishing`.

Reads the job as one line of JSON from standard input, and writes one line of JSON to standard output for each step of
the progress, and at the end. A line `cancel` ends the process and deletes the fetched files. The end of standard input
(the gateway has stopped) ends the process and leaves the files for a later process.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
import time
from typing import Any, BinaryIO

import msgspec

from catalog.errors import CatalogError
from publishing.job import Job, describe, lower_priority, run, staging_of
from storage.errors import StoreError
from telemetry.child_process import die_with_parent

REPORT_INTERVAL_S = 0.25
_CANCELLED, _ORPHANED = 3, 4  # exit codes


class _Reporter:
    """Writes lines of JSON. Progress within a step is written every REPORT_INTERVAL_S."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._reported: tuple[str, float] = ("", 0.0)

    def progress(self, step: str, done_bytes: int, total_bytes: int) -> None:
        last_step, last_s = self._reported
        now_s = time.monotonic()
        if step != last_step or now_s - last_s >= REPORT_INTERVAL_S or done_bytes == total_bytes:
            self._reported = (step, now_s)
            self.write({"detail": step, "done_bytes": done_bytes, "total_bytes": total_bytes})

    def write(self, line: dict[str, Any]) -> None:
        with self._lock:
            self._out.write(msgspec.json.encode(line) + b"\n")
            self._out.flush()


def _follow_gateway(job: Job, lines: BinaryIO) -> None:
    """Wait for `cancel` or the end of the gateway, and end this process."""
    line = lines.readline()
    if line.strip() == b"cancel":
        shutil.rmtree(staging_of(job), ignore_errors=True)
        os._exit(_CANCELLED)
    os._exit(_ORPHANED)


def main() -> int:
    """Run one job. Returns the process's exit code."""
    die_with_parent()
    lower_priority()
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    reporter = _Reporter(sys.stdout.buffer)
    threading.Thread(target=_follow_gateway, args=(job, sys.stdin.buffer), daemon=True).start()
    try:
        card = asyncio.run(run(job, reporter.progress))
    except (CatalogError, StoreError, OSError, ValueError) as error:
        reporter.write({"error": describe(error), "is_store": isinstance(error, StoreError)})
        return 1
    reporter.write({"revision": card.revision})
    return 0


if __name__ == "__main__":
    os._exit(main())  # a thread may still wait for the gateway
