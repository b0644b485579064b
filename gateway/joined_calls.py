"""Several calls of one request, told as if they were one call with the choices of all.

A list of prompts is such a request: each prompt is a call of its own, counted and recorded for itself, and none ends
without its entry. What goes wrong in one of them ends them all. Knows calls and events, not bodies or HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from engine.protocol.events import (
    ChoiceEnded,
    Event,
    Failed,
    Finished,
    FinishReason,
    Started,
    Token,
    Usage,
    total_usage,
)
from gateway.call import Call
from gateway.dispatch import Dispatch
from gateway.metering import MeteredEvents

MAX_AT_ONCE = 32  # calls of one request that nodes have
MAX_UNREAD_EVENTS = 4096  # of a stream whose client reads slowly


class Part(NamedTuple):
    """One of the calls, on its way."""

    call: Call
    dispatch: Dispatch
    events: MeteredEvents


class JoinedCalls:
    """The parts, of `num_choices` choices each. Ends as a dispatch does, is read as a call's events are."""

    def __init__(self, parts: Sequence[Part], num_choices: int) -> None:
        self._parts = parts
        self._num_choices = num_choices
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._pumps: list[asyncio.Task[None]] = []
        self._unread: list[Event] = []
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._error: Exception | None = None
        self._has_started = False
        self._has_ended = False
        self._usages: list[Usage] = []
        self._reason: FinishReason = "stop"  # of the first choice
        self.culprit = parts[0].call  # whose error ended them all

    @property
    def micro_neurons(self) -> int:
        return sum(part.events.micro_neurons for part in self._parts)

    @property
    def num_tokens(self) -> int:
        return sum(part.events.num_tokens for part in self._parts)

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        """The next events, in the order in which they came; of unstreamed calls, all of them. Raises what a part
        raised."""
        if not self._pumps:
            self._pumps = [asyncio.create_task(self._pump(index)) for index in range(len(self._parts))]
        is_stream = self._parts[0].call.is_stream
        while self._error is None and not self._has_ended and not (is_stream and self._unread):
            self._news.clear()
            await self._news.wait()
        wait_s = not_before_s - asyncio.get_running_loop().time()
        if wait_s > 0 and self._error is None and not self._has_ended:
            await asyncio.sleep(wait_s)
        if self._error is not None:
            raise self._error
        events, self._unread = self._unread, []
        self._room.set()
        return events

    async def _pump(self, index: int) -> None:
        """Hear one part to its end."""
        part = self._parts[index]
        async with self._slots:
            try:
                while not self._has_ended:
                    events = await part.events.take()
                    for event in events:
                        self._hear(index, event)
                    self._news.set()
                    if isinstance(events[-1], Finished | Failed):
                        return
                    await self._wait_for_room()
            except Exception as error:  # for whoever takes
                if self._error is None:
                    self._error, self.culprit = error, part.call
                self._news.set()

    async def _wait_for_room(self) -> None:
        while len(self._unread) > MAX_UNREAD_EVENTS and not self._has_ended:
            self._room.clear()
            await self._room.wait()

    def _hear(self, index: int, event: Event) -> None:
        """Take an event over as one of the whole; nothing comes after the end."""
        if self._has_ended:
            return
        first = index * self._num_choices
        if isinstance(event, Started):
            if not self._has_started:
                self._has_started = True
                self._unread.append(event)
        elif isinstance(event, Token | ChoiceEnded):
            self._unread.append(structs.replace(event, choice=first + event.choice))
        elif isinstance(event, Finished):
            self._finish(index, event)
        else:
            self._unread.append(event)
            self._has_ended = isinstance(event, Failed)

    def _finish(self, index: int, finished: Finished) -> None:
        if self._num_choices == 1:
            self._unread.append(ChoiceEnded(index, finished.reason))
        if index == 0:
            self._reason = finished.reason
        self._usages.append(finished.usage)
        if len(self._usages) == len(self._parts):
            self._unread.append(Finished(self._reason, total_usage(self._usages)))
            self._has_ended = True

    def abandon(self) -> None:
        """The client left."""
        for part in self._parts:
            part.dispatch.abandon()

    def stop(self) -> None:
        """This gateway cannot wait any longer."""
        for part in self._parts:
            part.dispatch.stop()

    async def close(self) -> None:
        """End every part that has not ended by itself, and have each settled."""
        self._has_ended = True
        self._room.set()
        self.stop()  # what has ended does not hear of it; nobody is interrupted while it settles
        await asyncio.gather(*self._pumps)
        await asyncio.gather(*(part.events.close() for part in self._parts))
