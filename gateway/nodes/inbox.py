"""Inbox: what a node has said of one call, until its reader takes it. Knows neither the connection nor the call."""

from __future__ import annotations

import asyncio

from engine.protocol.events import Event, Failed, Finished, Token, ToolCallDelta

_EVENT_OVERHEAD_BYTES = 64


class Overrun(Exception):
    """More was said about a call than its reader takes."""


class Inbox:
    """The events of one call on one node, in order, for one reader.

    With `waits_for_end` the reader is woken once, when the call has ended. Unread text is bounded by `max_bytes`.
    Times are the loop's.
    """

    __slots__ = (
        "_error", "_events", "_has_given", "_loop", "_max_bytes", "_not_before_s", "_num_bytes", "_timer", "_waiter",
        "has_ended", "last_event_s", "waits_for_end",
    )  # fmt: skip

    def __init__(self, *, waits_for_end: bool, max_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._has_given = False
        self._num_bytes = 0
        self._max_bytes = max_bytes
        self._not_before_s = 0.0
        self.waits_for_end = waits_for_end
        self.has_ended = False
        self.last_event_s: float | None = None

    def put(self, event: Event, now_s: float | None = None) -> None:
        """Add what the node said, heard at `now_s`, or now."""
        self.last_event_s = self._loop.time() if now_s is None else now_s
        self._events.append(event)
        kind = type(event)
        if kind is Token or kind is ToolCallDelta:
            text = event.text if kind is Token else event.arguments  # type: ignore[union-attr]  # by its kind
            self._num_bytes += len(text) + _EVENT_OVERHEAD_BYTES
            if self._num_bytes > self._max_bytes:
                self.fail(Overrun())
        elif kind is Finished or kind is Failed:
            self.has_ended = True
            self._wake()
        if self._timer is None and self._waiter is not None and not self.waits_for_end:
            self._wake_in_time()

    def fail(self, error: Exception) -> None:
        """Make the reader raise `error` as soon as it looks; the first error stays, and a call that ended has ended."""
        if self._error is None and not self.has_ended:
            self._error = error
            self._wake()

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        """Everything said since the last look. Waits until there is something and, unless the call has ended, until
        `not_before_s`. Raises what `fail` was given; if the reader has had something before, once it has had all."""
        self._not_before_s = not_before_s
        while self._error is None and not self._may_give():
            self._waiter = self._loop.create_future()
            if self._events and not self.waits_for_end:
                self._timer = self._loop.call_at(self._not_before_s, self._be_due)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
        if self._error is not None and not (self._has_given and self._events):
            raise self._error
        events, self._events = self._events, []
        self._num_bytes = 0
        self._has_given = True
        return events

    def _may_give(self) -> bool:
        if self.has_ended:
            return bool(self._events)
        return bool(self._events) and not self.waits_for_end and self._loop.time() >= self._not_before_s

    def _wake_in_time(self) -> None:
        """Wake the reader when what is here may be given: now, or by a timer."""
        if self._may_give():
            self._wake()
        elif not self.waits_for_end and self._timer is None:
            self._timer = self._loop.call_at(self._not_before_s, self._be_due)

    def _be_due(self) -> None:
        """By the timer's word, which counts: the clock, whose milliseconds are no exact fractions of a second, may say
        that less than nothing is missing, and would be asked again and again until its next one."""
        self._not_before_s = 0.0
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def drain(self) -> list[Event]:
        """What lies unread, without waiting and whatever went wrong; later errors are forgotten too."""
        events, self._events = self._events, []
        self._error = None
        return events
