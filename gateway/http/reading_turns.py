"""Turns: clients take turns when they have many unauthenticated connections, or send data that is slow to parse.

A client with a few connections is served at once. Beyond FREE_PER_CLIENT unauthenticated connections of one client, or
FREE_IN_TOTAL of all clients, the data that such connections send waits. On any connection, data waits that could not
be parsed in PARSE_S, such as a flood of tiny chunks, headers or WebSocket frames. A turn serves some connections, for
TURN_S at most: more while the event loop is on time, fewer when it is late. After each connection, everything else that
is due runs first, also the request that the connection sent: so that request's time counts too. A flood takes only the
time that other requests leave.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from typing import Protocol

FREE_PER_CLIENT = 10
FREE_IN_TOTAL = 200
PARSE_S = 0.0005  # longest parsing of one connection's data at once
TURN_INTERVAL_S, TURN_S = 0.002, 0.001
MAX_WAITING_BYTES = 8 << 20  # limit for all unauthenticated connections of one client
MAX_DELAY_S = 0.002  # delay of the event loop above which turns get smaller
MIN_PER_TURN, MAX_PER_TURN = 1, 64


class WaitingConnection(Protocol):
    """The connection method that is used here."""

    def take_turn(self) -> None: ...


class ReadingTurns:
    """The connections of one server whose data waits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # By client, with the number of bytes that wait; the next client comes first.
        self._waiting: dict[str, deque[tuple[WaitingConnection, int]]] = {}
        self._num_bytes: Counter[str] = Counter()  # waiting bytes by client
        self._num_per_turn = MIN_PER_TURN
        self._next_turn_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: WaitingConnection, client: str, num_bytes: int, max_bytes: float = math.inf) -> bool:
        """Give a connection, for which `num_bytes` wait, one turn. Return False if more than `max_bytes` would wait for
        the client. A connection that is closed meanwhile must do nothing in its turn."""
        if self._num_bytes[client] + num_bytes > max_bytes:
            return False
        self._waiting.setdefault(client, deque()).append((connection, num_bytes))
        self._num_bytes[client] += num_bytes
        if self._timer is None:
            self._schedule()
        return True

    def _schedule(self) -> None:
        self._next_turn_s = self._loop.time() + TURN_INTERVAL_S
        self._timer = self._loop.call_at(self._next_turn_s, self._begin_turn)

    def _begin_turn(self) -> None:
        is_late = self._loop.time() - self._next_turn_s > MAX_DELAY_S
        self._num_per_turn = max(MIN_PER_TURN, self._num_per_turn // 2) if is_late else self._num_per_turn + 1
        self._num_per_turn = min(self._num_per_turn, MAX_PER_TURN)
        self._go_on(self._num_per_turn, time.perf_counter() + TURN_S)

    def _go_on(self, num_left: int, ends_s: float) -> None:
        """Serve one connection, then everything else that is due, then the next connection of this turn."""
        if num_left and self._waiting and time.perf_counter() < ends_s:
            self._serve_client(next(iter(self._waiting)))
            self._loop.call_soon(self._go_on, num_left - 1, ends_s)
        elif self._waiting:
            self._schedule()
        else:
            self._timer = None

    def _serve_client(self, client: str) -> None:
        connections = self._waiting.pop(client)
        connection, num_bytes = connections.popleft()
        if connections:
            self._waiting[client] = connections
            self._num_bytes[client] -= num_bytes
        else:
            del self._num_bytes[client]
        connection.take_turn()
