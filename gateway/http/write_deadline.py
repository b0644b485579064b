"""Write deadline: abort connections whose clients do not read the responses.

Applies to every response of every kind, also after the response is complete and while the connection is closing. All
connections are checked in one sweep, four times per timeout: a timer for each write would cost more. A connection that
is due is checked a second time after the operating system has been asked to send, so that a delay of this process is
not blamed on the client.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

MIN_BYTES = 16 * 1024  # per timeout; a client that has this much to read and reads less is disconnected
RECHECK_DELAY_S = 0.05


class Flow(FlowControl):
    """uvicorn's flow control, which also counts the bytes written to the transport, and reads nothing more while
    received data waits to be parsed (`is_held`)."""

    num_written = 0
    is_held = False

    def resume_reading(self) -> None:
        """Read again, unless received data waits."""
        if not self.is_held:
            super().resume_reading()


class WritingConnection(Protocol):
    """The connection methods that the deadline uses."""

    @property
    def num_unsent(self) -> int: ...
    @property
    def num_sent(self) -> int: ...
    def abort(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Window:
    """A client must have read `num_sent` bytes in all when the timeout after `since_s` is over."""

    since_s: float
    num_sent: int


class WriteDeadline:
    """Enforces the deadline for the connections of one server."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._windows: dict[WritingConnection, _Window | None] = {}  # None: nothing was unsent in the last sweep
        self._sweep_timer: asyncio.TimerHandle | None = None

    def add(self, connection: WritingConnection) -> None:
        """Track a new connection."""
        self._windows[connection] = None
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(self._timeout_s / 4, self._sweep)

    def remove(self, connection: WritingConnection) -> None:
        """Stop tracking a closed connection."""
        self._windows.pop(connection, None)

    def _sweep(self) -> None:
        self._sweep_timer = self._loop.call_later(self._timeout_s / 4, self._sweep) if self._windows else None
        now = self._loop.time()
        for connection, window in self._windows.items():
            num_unsent = connection.num_unsent
            if not num_unsent:
                if window is not None:
                    self._windows[connection] = None
            elif window is None or connection.num_sent >= window.num_sent:
                self._windows[connection] = _Window(now, connection.num_sent + min(num_unsent, MIN_BYTES))
            elif now - window.since_s >= self._timeout_s:
                self._loop.call_later(RECHECK_DELAY_S, self._abort_overdue, connection, window)

    def _abort_overdue(self, connection: WritingConnection, window: _Window) -> None:
        if self._windows.get(connection) is window and connection.num_sent < window.num_sent:
            connection.abort()
