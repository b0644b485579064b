"""How long a connection may take to say what it wants, and how many of one address may stay without a credential.

One pass over those that wait, twice a second and only while any do: no timer for each request. Whoever is to go is
looked at once more, when everything that has arrived meanwhile was read: a process that was busy, or stood still, does
not take its own lateness for a client's. Knows connections by what they can do, and nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

SWEEP_INTERVAL_S = 0.5
LOOK_AGAIN_S = 0.05
GRACE_SHARE = 0.5  # of the time for a head, in which a connection can show a credential before it counts
MAX_BURST = 10  # times the limit, and a new connection is dropped at once


class Visitor(Protocol):
    """A client's connection."""

    address: str

    @property
    def is_answering(self) -> bool: ...
    def give_up_on_head(self) -> None: ...
    def abort(self) -> None: ...


class Doorkeeper:
    """Watches the connections of one server."""

    def __init__(self, head_timeout_s: float, max_strangers: int) -> None:
        self._head_timeout_s = head_timeout_s
        self._grace_s = head_timeout_s * GRACE_SHARE
        self._max_strangers = max_strangers
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Visitor, float] = {}  # for a whole head, since; the oldest first
        self._strangers: dict[str, dict[Visitor, float]] = {}  # by address, since; the oldest first
        self._sweep_timer: asyncio.TimerHandle | None = None

    def arrive(self, visitor: Visitor) -> None:
        """A connection was opened: a head is due, and a credential."""
        strangers = self._strangers.setdefault(visitor.address, {})
        strangers[visitor] = self._loop.time()
        if len(strangers) > self._max_strangers * MAX_BURST:
            visitor.abort()
        self.wait_for_head(visitor)

    def wait_for_head(self, visitor: Visitor) -> None:
        """A head has begun, or is due; that it goes on changes nothing."""
        self._waiting.setdefault(visitor, self._loop.time())
        if self._sweep_timer is None:
            self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def have_head(self, visitor: Visitor) -> None:
        """The head is there."""
        self._waiting.pop(visitor, None)

    def trust(self, visitor: Visitor) -> None:
        """The connection has shown a credential that is good."""
        strangers = self._strangers.get(visitor.address)
        if strangers is not None:
            strangers.pop(visitor, None)
            if not strangers:
                del self._strangers[visitor.address]

    def leave(self, visitor: Visitor) -> None:
        """The connection is closed."""
        self._waiting.pop(visitor, None)
        self.trust(visitor)

    @property
    def num_strangers(self) -> int:
        return sum(map(len, self._strangers.values()))

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
                oldest = list(strangers.items())[:num_over]
                crowd += [visitor for visitor, since_s in oldest if now - since_s >= self._grace_s]
        if late or crowd:
            self._loop.call_later(LOOK_AGAIN_S, self._send_away, late, crowd)
        if self._waiting or is_crowded:
            self._sweep_timer = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)

    def _send_away(self, late: dict[Visitor, float], crowd: list[Visitor]) -> None:
        """Those who still have not said what was due."""
        for visitor, since_s in late.items():
            if self._waiting.get(visitor) == since_s:
                del self._waiting[visitor]
                visitor.give_up_on_head()
        for visitor in crowd:
            if visitor in self._strangers.get(visitor.address, ()) and not visitor.is_answering:
                visitor.abort()
