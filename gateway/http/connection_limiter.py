"""Limits on client connections: the time until a request head is complete, unauthenticated connections per client, and
the share of each account in all authenticated connections.

A client is an IPv4 address or a /64 network of IPv6 addresses. A connection from a trusted proxy is not counted while
it is idle; during a request, it counts for the client that the proxy names.

All waiting connections are checked in one sweep, twice a second while there are any: a timer for each request would
cost more. A connection that is due is checked a second time after pending data has been read, so that a delay of this
process is not blamed on the client.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Protocol

from gateway.http.reading_turns import FREE_IN_TOTAL, FREE_PER_CLIENT
from telemetry.fair_share import AccountShares

SWEEP_INTERVAL_S = 0.5
RECHECK_DELAY_S = 0.05
GRACE_SHARE = 0.5  # share of the head timeout for which a connection beyond the limit may stay unauthenticated
BURST_FACTOR = 10  # beyond this multiple of the limit, the grace period is BURST_GRACE_S
BURST_GRACE_S = 1.0
MAX_FACTOR = 50  # beyond this multiple of the limit, new connections are rejected at once


class ClientConnection(Protocol):
    """The connection methods that the limiter uses."""

    @property
    def is_waiting_for_gateway(self) -> bool: ...
    @property
    def is_idle_at_proxy(self) -> bool: ...
    def time_out_head(self) -> None: ...
    def reject(self) -> None: ...


class ConnectionLimiter:
    """Enforces the limits for the connections of one server."""

    def __init__(
        self, head_timeout_s: float, max_unauthenticated_connections: int, max_authenticated_connections: int
    ) -> None:
        """Allow `max_unauthenticated_connections` per client, and `max_authenticated_connections` in total."""
        self._head_timeout_s = head_timeout_s
        self._grace_s = head_timeout_s * GRACE_SHARE
        self._max_unauthenticated = max_unauthenticated_connections
        self._loop = asyncio.get_running_loop()
        # The values are start times in seconds of the loop's clock; the oldest entries come first.
        self._waiting_for_head: dict[ClientConnection, float] = {}
        self._unauthenticated: dict[
            str, dict[ClientConnection, float]
        ] = {}  # client -> connections and their start times
        self._clients: dict[ClientConnection, str] = {}  # unauthenticated connection -> client
        self._shares = AccountShares(max_authenticated_connections)
        self._parties: dict[ClientConnection, str] = {}  # parties of the authenticated connections
        self._sweep_timer: asyncio.TimerHandle | None = None

    def count(self, connection: ClientConnection, client: str) -> None:
        """Count a connection as an unauthenticated connection of `client`, and no longer for another client."""
        self.stop_counting(connection)
        connections = self._unauthenticated.setdefault(client, {})
        connections[connection] = self._loop.time()
        self._clients[connection] = client
        self._start_sweeping()
        if len(connections) > self._max_unauthenticated * MAX_FACTOR:
            self._reject(connection)

    def stop_counting(self, connection: ClientConnection) -> None:
        """Stop counting a connection: it has sent a valid credential, or the request of a proxy is complete."""
        client = self._clients.pop(connection, None)
        if client is not None:
            connections = self._unauthenticated[client]
            del connections[connection]
            if not connections:
                del self._unauthenticated[client]

    def count_authenticated(self, connection: ClientConnection, party: str) -> bool:
        """Count a connection as one of `party`, and no longer as unauthenticated or as another party's. Return False,
        and change nothing, if the party has too many connections."""
        if self._shares.has_enough(party):
            return False
        self.stop_counting(connection)
        self._stop_counting_authenticated(connection)
        self._shares.take(party)
        self._parties[connection] = party
        return True

    def _stop_counting_authenticated(self, connection: ClientConnection) -> None:
        party = self._parties.pop(connection, None)
        if party is not None:
            self._shares.give_back(party)

    def client_of(self, connection: ClientConnection) -> str | None:
        """Return the client of an unauthenticated connection."""
        return self._clients.get(connection)

    def crowded_client(self, connection: ClientConnection) -> str | None:
        """Return the client of an unauthenticated connection if so many are open that they must take turns."""
        client = self._clients.get(connection)
        if client is None:
            return None
        is_crowded = len(self._clients) > FREE_IN_TOTAL or len(self._unauthenticated[client]) > FREE_PER_CLIENT
        return client if is_crowded else None

    def wait_for_head(self, connection: ClientConnection) -> None:
        """Start the head timeout of a connection. A running timeout is not restarted."""
        self._waiting_for_head.setdefault(connection, self._loop.time())
        self._start_sweeping()

    def head_received(self, connection: ClientConnection) -> None:
        """Stop the head timeout of a connection."""
        self._waiting_for_head.pop(connection, None)

    def remove(self, connection: ClientConnection) -> None:
        """Stop tracking a closed connection."""
        self._waiting_for_head.pop(connection, None)
        self.stop_counting(connection)
        self._stop_counting_authenticated(connection)

    def _reject(self, connection: ClientConnection) -> None:
        self.remove(connection)
        connection.reject()

    def _start_sweeping(self) -> None:
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

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
        if late or excess:
            self._loop.call_later(RECHECK_DELAY_S, self._close_overdue, late, excess)
        if self._waiting_for_head or is_over_limit:
            self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def _excess(self, connections: dict[ClientConnection, float], now: float) -> list[ClientConnection]:
        """Return the oldest connections of a client beyond the limit whose grace period is over."""
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
            if connection.is_idle_at_proxy:
                self.stop_counting(connection)
        for connection in excess:
            client = self._clients.get(connection)
            is_over_limit = client is not None and len(self._unauthenticated[client]) > self._max_unauthenticated
            if is_over_limit and not connection.is_waiting_for_gateway:
                self._reject(connection)
        for connection, since_s in late.items():
            if self._waiting_for_head.get(connection) == since_s:
                del self._waiting_for_head[connection]
                connection.time_out_head()
