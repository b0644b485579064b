"""Limits on client connections: the time until a request head is complete, and unauthenticated connections per address.

All waiting connections are checked in one sweep, twice a second while there are any: a timer for each request would
cost more. A connection that is due is checked a second time after pending data has been read, so that a delay of this
process is not blamed on the client. A rejected connection gets an error response and a moment to read it, because
closing a socket with unread data resets the connection.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Protocol

SWEEP_INTERVAL_S = 0.5
RECHECK_DELAY_S = 0.05
GRACE_SHARE = 0.5  # of the head timeout: how long a new connection may stay unauthenticated beyond the limit
BURST_FACTOR = 10  # beyond this multiple of the limit, the grace period is BURST_GRACE_S
BURST_GRACE_S = 1.0
MAX_FACTOR = 50  # beyond this multiple of the limit, new connections are rejected at once
REJECTION_LINGER_S = 3.0  # how long a rejected connection stays open for its client to read the response
MAX_REJECTED = 4000  # open rejected connections; beyond that, connections are dropped without a response


class ClientConnection(Protocol):
    """The connection methods that the limiter uses."""

    address: str

    @property
    def has_pending_response(self) -> bool: ...
    def time_out_head(self) -> None: ...
    def reject(self) -> None: ...
    def abort(self) -> None: ...


class ConnectionLimiter:
    """Enforces the limits for the connections of one server."""

    def __init__(self, head_timeout_s: float, max_unauthenticated_connections: int) -> None:
        """Allow `max_unauthenticated_connections` per client address."""
        self._head_timeout_s = head_timeout_s
        self._grace_s = head_timeout_s * GRACE_SHARE
        self._max_unauthenticated = max_unauthenticated_connections
        self._loop = asyncio.get_running_loop()
        # The values are start times in seconds of the loop's clock; the oldest entries come first.
        self._waiting_for_head: dict[ClientConnection, float] = {}
        self._unauthenticated: dict[str, dict[ClientConnection, float]] = {}  # by address
        self._rejected: dict[ClientConnection, float] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None

    def add(self, connection: ClientConnection) -> None:
        """Track a new connection: it owes a request head and a credential."""
        connections = self._unauthenticated.setdefault(connection.address, {})
        connections[connection] = self._loop.time()
        self.wait_for_head(connection)
        if len(connections) > self._max_unauthenticated * MAX_FACTOR:
            self._reject(connection)

    def wait_for_head(self, connection: ClientConnection) -> None:
        """Start the head timeout of a connection. A running timeout is not restarted."""
        self._waiting_for_head.setdefault(connection, self._loop.time())
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def head_received(self, connection: ClientConnection) -> None:
        """Stop the head timeout of a connection."""
        self._waiting_for_head.pop(connection, None)

    def mark_authenticated(self, connection: ClientConnection) -> None:
        """Stop counting a connection, because it has sent a valid credential."""
        connections = self._unauthenticated.get(connection.address)
        if connections is not None:
            connections.pop(connection, None)
            if not connections:
                del self._unauthenticated[connection.address]

    def remove(self, connection: ClientConnection) -> None:
        """Stop tracking a closed connection."""
        self._rejected.pop(connection, None)
        self._waiting_for_head.pop(connection, None)
        self.mark_authenticated(connection)

    def _reject(self, connection: ClientConnection) -> None:
        self.remove(connection)
        if len(self._rejected) >= MAX_REJECTED:
            connection.abort()
            return
        self._rejected[connection] = self._loop.time()
        connection.reject()

    def _sweep(self) -> None:
        self._sweep_timer = None
        now = self._loop.time()
        late = dict(
            itertools.takewhile(lambda item: now - item[1] >= self._head_timeout_s, self._waiting_for_head.items())
        )
        excess: list[ClientConnection] = []
        is_over_limit = False
        for connections in self._unauthenticated.values():
            if len(connections) > self._max_unauthenticated:
                is_over_limit = True
                excess += self._excess(connections, now)
        self._abort_rejected(now)
        if late or excess:
            self._loop.call_later(RECHECK_DELAY_S, self._close_overdue, late, excess)
        if self._waiting_for_head or is_over_limit or self._rejected:
            self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def _excess(self, connections: dict[ClientConnection, float], now: float) -> list[ClientConnection]:
        """Return the oldest connections of an address beyond the limit whose grace period is over."""
        num_excess = len(connections) - self._max_unauthenticated
        num_burst = len(connections) - self._max_unauthenticated * BURST_FACTOR
        excess = []
        for index, (connection, since_s) in enumerate(itertools.islice(connections.items(), num_excess)):
            grace_s = min(BURST_GRACE_S, self._grace_s) if index < num_burst else self._grace_s
            if now - since_s >= grace_s:
                excess.append(connection)
        return excess

    def _close_overdue(self, late: dict[ClientConnection, float], excess: list[ClientConnection]) -> None:
        """Close the connections that are still overdue after pending data has been read."""
        for connection in excess:
            if connection in self._unauthenticated.get(connection.address, ()) and not connection.has_pending_response:
                self._reject(connection)
        for connection, since_s in late.items():
            if self._waiting_for_head.get(connection) == since_s:
                del self._waiting_for_head[connection]
                connection.time_out_head()

    def _abort_rejected(self, now: float) -> None:
        for connection, since_s in list(self._rejected.items()):
            if now - since_s < REJECTION_LINGER_S:
                break
            connection.abort()
