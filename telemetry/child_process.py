"""Child processes: a child exits with its parent, and the parent learns how the child exited.

In the child, `die_with_parent` asks the kernel for a signal (Linux only; elsewhere it does nothing). In the parent,
`Child` is a forked process; the code that reaps the process sets `exited`.
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
_NAME_BYTES = 15  # the kernel truncates longer names
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None  # loaded at import, not after a fork


def die_with_parent(parent_pid: int | None = None, number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send signal `number` to this process when its parent exits.

    Sends the signal at once if the parent is not `parent_pid` (default: the current parent). Safe to call between fork
    and exec: makes system calls only and takes no locks.
    """
    if _libc is None:
        return
    parent_pid = os.getppid() if parent_pid is None else parent_pid
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def set_process_name(name: str) -> None:
    """Set the name that `ps` and `top` show for this process."""
    if _libc is not None:
        _libc.prctl(_PR_SET_NAME, name.encode()[:_NAME_BYTES], 0, 0, 0)


def describe_exit(exit_code: int) -> str:
    """Return the end of a sentence that describes an exit code (negative for a signal)."""
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"


@dataclass(eq=False)
class Child:
    """A forked process. `socket` is the parent's end of the connection and belongs to the caller. `exited` is set to
    the exit code."""

    pid: int
    socket: socket.socket
    exited: asyncio.Future[int] = field(repr=False)

    async def wait(self) -> int:
        """Wait for the process to exit and return its exit code (negative for a signal)."""
        return await asyncio.shield(self.exited)

    def kill(self) -> None:
        """Kill the process if it is still running."""
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def end(self, timeout_s: float) -> int:
        """Wait up to `timeout_s` for the process to exit, then kill it; return the exit code."""
        try:
            return await asyncio.wait_for(self.wait(), timeout_s)
        except TimeoutError:
            self.kill()
            return await self.wait()
