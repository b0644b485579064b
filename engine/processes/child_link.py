"""Link to a child process: frames both ways, its exit, and detection of a hang.

A child hangs if it has pending work and for `hang_timeout_s` sends nothing, uses no CPU time and waits for neither CPU
nor disk. A child that computes without sending is given BUSY_TIMEOUT_FACTOR times as long. A hung child is killed. The
timeout counts checks instead of seconds, so that a front process that was itself suspended does not blame its child.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.processes.frames import FrameReader
from telemetry.child_process import Child, describe_exit

logger = logging.getLogger(__name__)

HANG_TIMEOUT_S = 15.0
BUSY_TIMEOUT_FACTOR = 8
EXIT_TIMEOUT_S = 5.0
_NUM_CHECKS = 4  # successive checks without any change, after which a child hangs


class ChildLink(asyncio.Protocol):
    """Belongs to one event loop. `name` names the child in logs and messages.

    `on_frame` gets each payload. `on_lost` is called at least once when no more frames will come.
    `on_exit` is called once, with a line that says how, if the child ends without `close`. `has_pending` returns True
    while the child has work to respond to.
    """

    def __init__(
        self,
        child: Child,
        name: str,
        *,
        on_frame: Callable[[bytes], None],
        on_lost: Callable[[], None],
        on_exit: Callable[[str], None],
        has_pending: Callable[[], bool],
        hang_timeout_s: float = HANG_TIMEOUT_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = child
        self._name = name
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_exit = on_exit
        self._has_pending = has_pending
        self._check_s = hang_timeout_s / _NUM_CHECKS
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._exit_job: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_received = False
        self._num_silent = 0  # successive checks without a frame
        self._num_idle = 0  # successive checks without a frame and without activity
        self._activity = _Activity(0, is_busy=False)
        self._helper_pids: tuple[int, ...] = ()
        self._kill_reason = ""
        self._is_gone = False
        self._is_closing = False

    @property
    def pid(self) -> int:
        return self._child.pid

    def watch_with(self, pids: tuple[int, ...]) -> None:
        """Count the activity of these processes as the child's, which waits for them."""
        self._helper_pids = pids

    @property
    def is_closing(self) -> bool:
        """True once `close` was called."""
        return self._is_closing

    @property
    def is_alive(self) -> bool:
        return not (self._is_gone or self._is_closing)

    async def open(self) -> None:
        """Start receiving from the child."""
        self._child.socket.setblocking(False)
        self._transport, _ = await self._loop.create_unix_connection(lambda: self, sock=self._child.socket)

    def watch_exit(self) -> None:
        """Report the child's exit to `on_exit` from now on."""
        self._exit_job = asyncio.create_task(self._await_exit())

    def send(self, frame: bytes) -> None:
        """Send a frame that the child will respond to."""
        if self._transport is None or not self.is_alive:
            return
        self._transport.write(frame)
        if self._timer is None:
            self._num_silent = self._num_idle = 0
            self._activity = self._total_activity()
            self._timer = self._loop.call_later(self._check_s, self._check)

    async def close(self, *, at_once: bool = False) -> None:
        """End the child by closing its socket, and kill it if it does not exit in time or if `at_once`."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.close()
        else:
            self._child.socket.close()
        self._stop_checks()
        self._on_lost()
        await self._child.end(0 if at_once else EXIT_TIMEOUT_S)
        if self._exit_job is not None:
            await self._exit_job

    # ── the socket ──

    def data_received(self, data: bytes) -> None:
        self._has_received = True
        for payload in self._reader.feed(data):
            self._on_frame(payload)

    def connection_lost(self, _error: Exception | None) -> None:
        self._is_gone = True
        self._stop_checks()
        if not self._is_closing:
            self._loop.call_later(EXIT_TIMEOUT_S, self._child.kill)  # until then, the child may still write its log
        self._on_lost()

    async def _await_exit(self) -> None:
        code = await self._child.wait()
        self._is_gone = True
        self._stop_checks()
        if self._is_closing:
            return
        self._on_lost()
        exit_reason = self._kill_reason or describe_exit(code)
        logger.error("%s %d %s", self._name, self.pid, exit_reason)
        self._on_exit(f"{self._name} {exit_reason}")

    # ── hang detection ──

    def _check(self) -> None:
        """Check for frames and activity since the last check; kill the child if it hangs."""
        self._timer = None
        if not self.is_alive or not self._has_pending():
            return
        activity = self._total_activity()
        is_idle = activity.cpu_ticks == self._activity.cpu_ticks and not activity.is_busy
        self._num_silent = 0 if self._has_received else self._num_silent + 1
        self._num_idle = self._num_idle + 1 if is_idle and not self._has_received else 0
        self._has_received, self._activity = False, activity
        if self._num_idle >= _NUM_CHECKS or self._num_silent >= _NUM_CHECKS * BUSY_TIMEOUT_FACTOR:
            silent_s = self._num_silent * self._check_s
            self._kill_reason = f"was killed: it did not respond for {silent_s:g} s"
            self._child.kill()
            return
        self._timer = self._loop.call_later(self._check_s, self._check)

    def _total_activity(self) -> _Activity:
        all_activity = [_activity(pid) for pid in (self.pid, *self._helper_pids)]
        return _Activity(
            sum(each.cpu_ticks for each in all_activity), is_busy=any(each.is_busy for each in all_activity)
        )

    def _stop_checks(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@dataclass(frozen=True)
class _Activity:
    """CPU time of all threads, and whether the process is running, waiting for a CPU, or waiting for a disk."""

    cpu_ticks: int
    is_busy: bool


def _activity(pid: int) -> _Activity:
    """Read /proc. If that fails the process counts as busy, so that only the longer timeout applies."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return _Activity(int(fields[11]) + int(fields[12]), is_busy=fields[0] in "RD")
    except (OSError, IndexError, ValueError):
        return _Activity(0, is_busy=True)
