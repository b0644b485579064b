"""May a call enter now: not while this gateway drains, and not above its number of calls in flight.

Knows no account and no price.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.errors import Reason, Refusal
from telemetry import metrics


class Place:
    """One call's place, held while the `with` block runs. `stop` is set by whoever can end the call early."""

    __slots__ = ("_admission", "stop")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.stop: Callable[[], None] = _nothing

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_error: object) -> None:
        self._admission.leave(self)


def _nothing() -> None: ...


class Admission:
    """Counts the calls in flight in this process."""

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._places: set[Place] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.is_draining = False

    def enter(self) -> Place:
        """A place for one call, to be held by `with`. Raises Refusal: DRAINING or OUT_OF_CAPACITY."""
        if self.is_draining:
            raise Refusal(Reason.DRAINING)
        if len(self._places) >= self._max_calls:
            raise Refusal(Reason.OUT_OF_CAPACITY)
        place = Place(self)
        self._places.add(place)
        self._is_empty.clear()
        metrics.CALLS_IN_FLIGHT.set(len(self._places))
        return place

    def leave(self, place: Place) -> None:
        """Give a place back."""
        self._places.discard(place)
        metrics.CALLS_IN_FLIGHT.set(len(self._places))
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
