"""Lingering close: after the last response, read and discard what the client still sends.

Closing a socket with unread data resets the connection, and the client may lose the response. Discarding costs time, so
the connections take turns: a flood of data that nobody wants leaves most of the time to requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Protocol

BODY_LINGER_S = 30.0  # for a client that sends the rest of a request body
REJECTION_LINGER_S = 3.0  # for a client that was rejected; also how long any client may send nothing
MAX_LINGERING = 4000  # beyond this number, connections are dropped without a chance to read the response
SWEEP_INTERVAL_S = 0.5
TURN_INTERVAL_S = 0.01
READS_PER_TURN = 8


class LingeringConnection(Protocol):
    """The connection methods that are used here."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def abort(self) -> None: ...


@dataclass(slots=True)
class _Limits:
    ends_s: float
    stalls_s: float  # the connection is aborted at this time if no data arrives before


class LingeringClose:
    """The connections of one server that are closing and still read. Times are seconds of the loop's clock."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lingering: dict[LingeringConnection, _Limits] = {}
        self._paused: deque[LingeringConnection] = deque()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._turn_timer: asyncio.TimerHandle | None = None

    def add(self, connection: LingeringConnection, linger_s: float) -> None:
        """Abort the connection after `linger_s` seconds, or earlier if it sends nothing for a while."""
        if len(self._lingering) >= MAX_LINGERING:
            connection.abort()
            return
        now = self._loop.time()
        self._lingering[connection] = _Limits(now + linger_s, now + REJECTION_LINGER_S)
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def remove(self, connection: LingeringConnection) -> None:
        """Stop tracking a closed connection."""
        self._lingering.pop(connection, None)

    def data_discarded(self, connection: LingeringConnection) -> None:
        """Note that data of the connection was discarded, and stop reading until it is the connection's turn again."""
        limits = self._lingering.get(connection)
        if limits is None:
            return
        limits.stalls_s = self._loop.time() + REJECTION_LINGER_S
        connection.pause_reading()
        self._paused.append(connection)
        if self._turn_timer is None:
            self._turn_timer = self._loop.call_later(TURN_INTERVAL_S, self._take_turn)

    def _take_turn(self) -> None:
        for _ in range(min(READS_PER_TURN, len(self._paused))):
            connection = self._paused.popleft()
            limits = self._lingering.get(connection)
            if limits is not None:
                limits.stalls_s = self._loop.time() + REJECTION_LINGER_S
                connection.resume_reading()
        self._turn_timer = self._loop.call_later(TURN_INTERVAL_S, self._take_turn) if self._paused else None

    def _sweep(self) -> None:
        now = self._loop.time()
        paused = set(self._paused)
        for connection, limits in list(self._lingering.items()):
            if now >= limits.ends_s or (now >= limits.stalls_s and connection not in paused):
                connection.abort()
        self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep) if self._lingering else None
