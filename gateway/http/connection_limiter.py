"""How long a connection may take to say what it wants, and how many of one address may stay without a credential.

One pass over those that wait, twice a second and only while any do: no timer for each request. Whoever is to go is
looked at once more, when everything that has arrived meanwhile was read: a process that was busy, or stood still, does
not take its own lateness for a client's. Who is turned away is told why, and has a moment to read it: a connection that
closes over bytes that nobody read is a reset to its client. Knows connections by what they can do, and nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Protocol

SWEEP_INTERVAL_S = 0.5
LOOK_AGAIN_S = 0.05
GRACE_SHARE = 0.5  # of the time for a head, in which a connection can show a credential before it counts
MAX_BURST = 10  # times the limit; those beyond it have only
HURRIED_GRACE_S = 1.0
MAX_HELD = 50  # times the limit, and a new connection is turned away at once
FAREWELL_S = 3.0  # in which what was said to who was turned away can be read
MAX_FAREWELLS = 4000  # at once; beyond that connections are dropped without a word


class Visitor(Protocol):
    """A client's connection."""

    address: str

    @property
    def is_answering(self) -> bool: ...
    def give_up_on_head(self) -> None: ...
    def turn_away(self) -> None: ...
    def abort(self) -> None: ...


class ConnectionLimiter:
    """Watches the connections of one server."""

    def __init__(self, head_timeout_s: float, max_unauthenticated_connections: int) -> None:
        self._head_timeout_s = head_timeout_s
        self._grace_s = head_timeout_s * GRACE_SHARE
        self._max_strangers = max_unauthenticated_connections
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Visitor, float] = {}  # for a whole head, since; the oldest first
        self._strangers: dict[str, dict[Visitor, float]] = {}  # by address, since; the oldest first
        self._turned_away: dict[Visitor, float] = {}  # since; the oldest first
        self._sweep_timer: asyncio.TimerHandle | None = None

    def arrive(self, visitor: Visitor) -> None:
        """A connection was opened: a head is due, and a credential."""
        strangers = self._strangers.setdefault(visitor.address, {})
        strangers[visitor] = self._loop.time()
        self.wait_for_head(visitor)
        if len(strangers) > self._max_strangers * MAX_HELD:
            self._turn_away(visitor)

    def wait_for_head(self, visitor: Visitor) -> None:
        """A head has begun, or is due; that it goes on changes nothing."""
        self._waiting.setdefault(visitor, self._loop.time())
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def have_head(self, visitor: Visitor) -> None:
        """The head is there."""
        self._waiting.pop(visitor, None)

    def mark_authenticated(self, visitor: Visitor) -> None:
        """The connection has shown a credential that is good."""
        strangers = self._strangers.get(visitor.address)
        if strangers is not None:
            strangers.pop(visitor, None)
            if not strangers:
                del self._strangers[visitor.address]

    def leave(self, visitor: Visitor) -> None:
        """The connection is closed."""
        self._turned_away.pop(visitor, None)
        self._waiting.pop(visitor, None)
        self.mark_authenticated(visitor)

    def _turn_away(self, visitor: Visitor) -> None:
        """It counts no more; it is told so, unless too many are."""
        self.leave(visitor)
        if len(self._turned_away) >= MAX_FAREWELLS:
            visitor.abort()
            return
        self._turned_away[visitor] = self._loop.time()
        visitor.turn_away()

    def _sweep(self) -> None:
        self._sweep_timer = None
        now = self._loop.time()
        late = {}
        for visitor, since_s in self._waiting.items():
            if now - since_s < self._head_timeout_s:
                break
            late[visitor] = since_s
        is_crowded = False
        crowd: list[Visitor] = []
        for strangers in self._strangers.values():
            num_over = len(strangers) - self._max_strangers
            if num_over > 0:
                is_crowded = True
                num_hurried = len(strangers) - self._max_strangers * MAX_BURST
                for number, (visitor, since_s) in enumerate(itertools.islice(strangers.items(), num_over)):
                    grace_s = min(HURRIED_GRACE_S, self._grace_s) if number < num_hurried else self._grace_s
                    if now - since_s >= grace_s:
                        crowd.append(visitor)
        self._end_farewells(now)
        if late or crowd:
            self._loop.call_later(LOOK_AGAIN_S, self._send_away, late, crowd)
        if self._waiting or is_crowded or self._turned_away:
            self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def _send_away(self, late: dict[Visitor, float], crowd: list[Visitor]) -> None:
        """Those who still have not said what was due."""
        for visitor in crowd:
            if visitor in self._strangers.get(visitor.address, ()) and not visitor.is_answering:
                self._turn_away(visitor)
        for visitor, since_s in late.items():
            if self._waiting.get(visitor) == since_s:
                del self._waiting[visitor]
                visitor.give_up_on_head()

    def _end_farewells(self, now: float) -> None:
        for visitor, since_s in list(self._turned_away.items()):
            if now - since_s < FAREWELL_S:
                break
            visitor.abort()
