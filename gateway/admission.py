"""May a call enter now: not while this gateway drains, and not above its number of calls in flight.

Knows no account and no price.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from gateway.errors import Reason, Refusal
from telemetry import metrics


class Place:
    """One call's place. `stop` is set by whoever can end the call early."""

    __slots__ = ("stop",)

    def __init__(self) -> None:
        self.stop: Callable[[], None] = _nothing


def _nothing() -> None: ...


class Admission:
    """Counts the calls in flight in this process."""

    def __init__(self, max_calls: int) -> None:
        self._max_calls = max_calls
        self._places: set[Place] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.is_draining = False

    @contextlib.contextmanager
    def enter(self) -> Iterator[Place]:
        """Hold a place for one call. Raises Refusal: DRAINING or OUT_OF_CAPACITY."""
        if self.is_draining:
            raise Refusal(Reason.DRAINING)
        if len(self._places) >= self._max_calls:
            raise Refusal(Reason.OUT_OF_CAPACITY)
        place = Place()
        self._places.add(place)
        self._is_empty.clear()
        metrics.CALLS_IN_FLIGHT.set(len(self._places))
        try:
            yield place
        finally:
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
