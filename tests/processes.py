"""State of processes, read from /proc."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path


def _fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat, starting with the state. Raises FileNotFoundError or ProcessLookupError."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def is_running(pid: int) -> bool:
    """Return True if `pid` exists and is not a zombie."""
    try:
        return _fields(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_sleeping(pid: int) -> bool:
    return _fields(pid)[0] == "S"


def cpu_ticks(pid: int) -> int:
    """Return the user and system time of a process in ticks of 10 ms."""
    fields = _fields(pid)
    return int(fields[11]) + int(fields[12])


async def are_at_rest(*pids: int, for_s: float = 0.3) -> bool:
    """Return True if the processes sleep for `for_s` seconds, using at most one tick. Call this repeatedly until it
    returns True, because a process may still do some work after its last response.
    """
    before = sum(cpu_ticks(pid) for pid in pids)
    await asyncio.sleep(for_s)
    return all(is_sleeping(pid) for pid in pids) and sum(cpu_ticks(pid) for pid in pids) - before <= 1


def num_threads(pid: int) -> int:
    return int(_fields(pid)[17])


def children_of(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def open_files() -> set[str]:
    """Return the open file descriptors of this process. Descriptors of earlier tests may disappear later, when
    unreferenced sockets are collected.
    """
    return set(os.listdir("/proc/self/fd"))
