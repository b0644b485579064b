"""JoinedCalls: several calls of one request as one call that has the choices of all.

A list of prompts is such a request. Each call is metered and recorded by itself; a failure of one ends them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engine.protocol.events import Event, Failed, Finished
from engine.protocol.joined_events import JoinedEvents
from gateway.metering import MeteredEvents

MAX_CONCURRENT = 32  # calls of one request that run on nodes at the same time
MAX_UNREAD_EVENTS = 4096  # limit for a stream whose client reads slowly


class JoinedCalls:
    """The events of several calls with `num_choices` choices each. Has the interface of `MeteredEvents`."""

    def __init__(self, calls: Sequence[MeteredEvents], num_choices: int) -> None:
        self._calls = calls
        self._joined = JoinedEvents(len(calls), num_choices)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._readers: list[asyncio.Task[None]] = []
        self._unread: list[Event] = []
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._error: Exception | None = None
        self._has_ended = False

    @property
    def micro_neurons(self) -> int:
        return sum(call.micro_neurons for call in self._calls)

    @property
    def num_tokens(self) -> int:
        return sum(call.num_tokens for call in self._calls)

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        """Return the next events in order of arrival; of unstreamed calls, all events. Raises what a call raised."""
        if not self._readers:
            self._readers = [asyncio.create_task(self._read(index)) for index in range(len(self._calls))]
        is_stream = self._calls[0].is_stream
        while self._error is None and not self._has_ended and not (is_stream and self._unread):
            self._has_news.clear()
            await self._has_news.wait()
        wait_s = not_before_s - asyncio.get_running_loop().time()
        if wait_s > 0 and self._error is None and not self._has_ended:
            await asyncio.sleep(wait_s)
        if self._error is not None:
            raise self._error
        events, self._unread = self._unread, []
        self._has_room.set()
        return events

    async def _read(self, index: int) -> None:
        """Read one call to its end."""
        call = self._calls[index]
        async with self._slots:
            try:
                while not self._has_ended:
                    events = await call.take()
                    for event in events:
                        self._unread += self._joined.add(index, event)
                    self._has_ended |= self._joined.has_ended
                    self._has_news.set()
                    if isinstance(events[-1], Finished | Failed):
                        return
                    await self._wait_for_room()
            except Exception as error:  # raised again by `take`
                if self._error is None:
                    self._error = error
                self._has_news.set()

    async def _wait_for_room(self) -> None:
        while len(self._unread) > MAX_UNREAD_EVENTS and not self._has_ended:
            self._has_room.clear()
            await self._has_room.wait()

    def abandon(self) -> None:
        """End all calls: the client disconnected."""
        for call in self._calls:
            call.abandon()

    def stop(self) -> None:
        """End all calls: the gateway shuts down."""
        for call in self._calls:
            call.stop()

    async def close(self) -> None:
        """End the calls that are still running, and settle every call."""
        self._has_ended = True
        self._has_room.set()
        self.stop()  # no effect on calls that have ended; no call is interrupted while it settles
        await asyncio.gather(*self._readers)
        await asyncio.gather(*(call.close() for call in self._calls))
