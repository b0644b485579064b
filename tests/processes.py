"""What the kernel says of a process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path


def _fields(pid: int) -> list[str]:
    """Of /proc/PID/stat from the state on. Raises FileNotFoundError or ProcessLookupError."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def is_running(pid: int) -> bool:
    """Whether `pid` exists and is not a zombie."""
    try:
        return _fields(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_sleeping(pid: int) -> bool:
    return _fields(pid)[0] == "S"


def cpu_ticks(pid: int) -> int:
    """User and system time it has used, in ticks (of 10 ms)."""
    fields = _fields(pid)
    return int(fields[11]) + int(fields[12])


async def are_at_rest(*pids: int, for_s: float = 0.3) -> bool:
    """Whether they sleep for as long, but for one tick. To be asked until it is so: what a process does once after its
    last answer may fall into one window, and one that polls is busy in all of them."""
    before = sum(cpu_ticks(pid) for pid in pids)
    await asyncio.sleep(for_s)
    return all(is_sleeping(pid) for pid in pids) and sum(cpu_ticks(pid) for pid in pids) - before <= 1


def num_threads(pid: int) -> int:
    return int(_fields(pid)[17])


def children_of(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def open_files() -> set[str]:
    """This process's descriptors. What was opened since and not closed is not among those of before; of those, some may
    be gone: sockets that earlier tests dropped are closed when they are collected."""
    return set(os.listdir("/proc/self/fd"))
