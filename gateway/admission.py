"""May a call enter now: not while this gateway drains, not above its number of calls in flight, and not where its
account would leave no room to others.

An account holds at most SHARE times as many places as are free: alone, two thirds of them; beside others the less,
the more they hold. So some are always free for who comes next, and nothing has to be set for it. Places are counted
from before the body is read, in this process alone: `tenants/quota/quota.py` counts the calls of all gateways.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from gateway.errors import Reason, Refusal
from telemetry import metrics
from tenants.quota.pace import Pace

SHARE = 2


class Place:
    """One call's place, held while the `with` block runs. `stop` is set by whoever can end the call early."""

    __slots__ = ("_admission", "account_id", "since_s", "stop")

    def __init__(self, admission: Admission, account_id: str, since_s: float) -> None:
        self._admission = admission
        self.account_id = account_id
        self.since_s = since_s
        self.stop: Callable[[], None] = _nothing

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_error: object) -> None:
        self._admission.leave(self)


def _nothing() -> None: ...


class Admission:
    """Counts the calls in flight in this process. Made within its event loop."""

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._loop = asyncio.get_running_loop()
        self._places: set[Place] = set()
        self._num_held: dict[str, int] = {}
        self._pace = Pace()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.is_draining = False
        metrics.CALLS_IN_FLIGHT.set_function(lambda: len(self._places))

    def enter(self, account_id: str) -> Place:
        """A place for one call, to be held by `with`. Raises Refusal: DRAINING, OUT_OF_CAPACITY or, where the account
        holds too many of them, CONCURRENCY_LIMITED."""
        if self.is_draining:
            raise Refusal(Reason.DRAINING)
        num_free = self._max_calls - len(self._places)
        if num_free <= 0:
            raise Refusal(Reason.OUT_OF_CAPACITY)
        num_held = self._num_held.get(account_id, 0)
        if num_held >= SHARE * num_free:
            wait_s = math.ceil(self._pace.next_s(account_id, num_held))
            raise Refusal(Reason.CONCURRENCY_LIMITED, "account", retry_after_s=wait_s)
        place = Place(self, account_id, self._loop.time())
        self._places.add(place)
        self._num_held[account_id] = num_held + 1
        self._is_empty.clear()
        return place

    def leave(self, place: Place) -> None:
        """Give a place back."""
        if place not in self._places:
            return
        self._places.discard(place)
        account_id = place.account_id
        num_held = self._num_held[account_id] - 1
        if num_held:
            self._num_held[account_id] = num_held
        else:
            del self._num_held[account_id]
        self._pace.saw(account_id, self._loop.time() - place.since_s)
        if not self._places:
            self._is_empty.set()

    def drain(self) -> None:
        """From now on nothing enters."""
        self.is_draining = True

    def stop_all(self) -> None:
        """Ask every call in flight to end now."""
        for place in list(self._places):
            place.stop()

    async def wait_empty(self) -> None:
        """Until no call is in flight."""
        await self._is_empty.wait()
