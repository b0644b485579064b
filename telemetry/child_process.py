"""The life of a child process, seen from both sides: it ends with its parent, and its parent hears how it ended.

In the child, `die_with_parent` arms the kernel (Linux; elsewhere it does nothing). In the parent, `Child` is a process
that somebody else reaps: whoever does sets `exited`. Knows nothing of what a child does.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from dataclasses import dataclass, field

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_NAME_BYTES = 15  # what the kernel keeps of one
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None  # found now: a fork must not look for it


def die_with_parent(parent_pid: int | None = None, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process signal `number` when its parent ends; at once if that is no longer
    `parent_pid`, by default whoever it is now. Fit to run between fork and exec: system calls, nothing that locks."""
    if _libc is None:
        return
    parent_pid = os.getppid() if parent_pid is None else parent_pid
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def set_process_name(name: str) -> None:
    """What `ps` and `top` show of this process."""
    if _libc is not None:
        _libc.prctl(_PR_SET_NAME, name.encode()[:_NAME_BYTES], 0, 0, 0)


def how_it_ended(exit_code: int) -> str:
    """An exit code, negative for a signal, as the rest of a sentence."""
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"


@dataclass(eq=False)
class Child:
    """A forked process. `socket` is our end of its connection; the caller owns it. `exited` holds its exit code."""

    pid: int
    socket: socket.socket
    exited: asyncio.Future[int] = field(repr=False)

    async def wait(self) -> int:
        """Its exit code, negative for a signal, once it is gone."""
        return await asyncio.shield(self.exited)

    def kill(self) -> None:
        """End it at once, if it still runs."""
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def end(self, patience_s: float) -> int:
        """Its exit code, once it has left by itself or, after `patience_s`, been killed."""
        try:
            return await asyncio.wait_for(self.wait(), patience_s)
        except TimeoutError:
            self.kill()
            return await self.wait()
