"""The front's end of one child process: frames to and fro, the news of its end, and a watch on its silence.

A child is hung when it owes an answer and for `hang_timeout_s` says nothing, uses no processor time and waits for none;
one that computes is given BUSY_TIMEOUT_FACTOR times as long. A hung child is killed. The watch
counts looks, not seconds: a front that was itself stopped does not take its own absence for its child's. Knows frames,
not what they say.
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
_NUM_LOOKS = 4  # in a row, at each of which nothing has changed


class ChildLink(asyncio.Protocol):
    """Belongs to one event loop. `name` is what logs and operators call the child.

    `on_frame` gets each payload; `on_lost` is called, at least once, when nothing more will come, be that our doing or
    not; `on_exit` once, with a line that says how, if the child ends without having been told to. `has_pending` says
    whether the child has something to answer.
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
        self._is_owed = has_pending
        self._look_s = hang_timeout_s / _NUM_LOOKS
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._exit_job: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_spoken = False
        self._num_silent = 0  # looks in a row that heard nothing
        self._num_still = 0  # looks in a row that heard nothing and saw it do nothing
        self._activity = _Activity(0, is_busy=False)
        self._helper_pids: tuple[int, ...] = ()
        self._verdict = ""
        self._is_gone = False
        self._is_closing = False

    @property
    def pid(self) -> int:
        return self._child.pid

    def watch_with(self, pids: tuple[int, ...]) -> None:
        """What these processes compute counts as the child's own: it waits for them."""
        self._helper_pids = pids

    @property
    def is_closing(self) -> bool:
        """Whether its end is our doing."""
        return self._is_closing

    @property
    def is_alive(self) -> bool:
        return not (self._is_gone or self._is_closing)

    async def open(self) -> None:
        """Begin to hear the child."""
        self._child.socket.setblocking(False)
        self._transport, _ = await self._loop.create_unix_connection(lambda: self, sock=self._child.socket)

    def watch_exit(self) -> None:
        """From now on its end is news for `on_exit`."""
        self._exit_job = asyncio.create_task(self._await_exit())

    def send(self, frame: bytes) -> None:
        """Something that the child will answer."""
        if self._transport is None or not self.is_alive:
            return
        self._transport.write(frame)
        if self._timer is None:
            self._num_silent = self._num_still = 0
            self._activity = self._look_at_all()
            self._timer = self._loop.call_later(self._look_s, self._look)

    async def close(self, *, at_once: bool = False) -> None:
        """End the child: it sees its socket closed, and is killed if that is not enough; or killed `at_once`."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.close()
        else:
            self._child.socket.close()
        self._stop_watch()
        self._on_lost()
        await self._child.end(0 if at_once else EXIT_TIMEOUT_S)
        if self._exit_job is not None:
            await self._exit_job

    # ── the socket ──

    def data_received(self, data: bytes) -> None:
        self._has_spoken = True
        for payload in self._reader.feed(data):
            self._on_frame(payload)

    def connection_lost(self, _error: Exception | None) -> None:
        self._is_gone = True
        self._stop_watch()
        if not self._is_closing:
            self._loop.call_later(EXIT_TIMEOUT_S, self._child.kill)  # it may still be writing its log
        self._on_lost()

    async def _await_exit(self) -> None:
        code = await self._child.wait()
        self._is_gone = True
        self._stop_watch()
        if self._is_closing:
            return
        self._on_lost()
        how = self._verdict or describe_exit(code)
        logger.error("%s %d %s", self._name, self.pid, how)
        self._on_exit(f"{self._name} {how}")

    # ── the watch ──

    def _look(self) -> None:
        """Does it owe an answer, has it said anything since the last look, does it at least compute?"""
        self._timer = None
        if not self.is_alive or not self._is_owed():
            return
        activity = self._look_at_all()
        is_still = activity.cpu_ticks == self._activity.cpu_ticks and not activity.is_busy
        self._num_silent = 0 if self._has_spoken else self._num_silent + 1
        self._num_still = self._num_still + 1 if is_still and not self._has_spoken else 0
        self._has_spoken, self._activity = False, activity
        if self._num_still >= _NUM_LOOKS or self._num_silent >= _NUM_LOOKS * BUSY_TIMEOUT_FACTOR:
            silent_s = self._num_silent * self._look_s
            self._verdict = f"was killed: it owed an answer and had said nothing for {silent_s:g} s"
            self._child.kill()
            return
        self._timer = self._loop.call_later(self._look_s, self._look)

    def _look_at_all(self) -> _Activity:
        all_activity = [_activity(pid) for pid in (self.pid, *self._helper_pids)]
        return _Activity(
            sum(each.cpu_ticks for each in all_activity), is_busy=any(each.is_busy for each in all_activity)
        )

    def _stop_watch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@dataclass(frozen=True)
class _Activity:
    """Processor time that all threads have used, and whether the process is at work right now: running, waiting for a
    processor that others have, or reading from a disk."""

    cpu_ticks: int
    is_busy: bool


def _activity(pid: int) -> _Activity:
    """As the kernel has it; where it says nothing, only the longer patience is left."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return _Activity(int(fields[11]) + int(fields[12]), is_busy=fields[0] in "RD")
    except (OSError, IndexError, ValueError):
        return _Activity(0, is_busy=True)
