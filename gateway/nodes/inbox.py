"""Inbox: the events of one call on one node, until the call's reader takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine.protocol.events import Data, Event, Failed, Finished, Token, ToolCallDelta

_EVENT_OVERHEAD_BYTES = 64


class Overrun(Exception):
    """The reader of a call is too slow: too much unread output."""


class Inbox:
    """Events in order, for one reader. With `waits_for_end` the reader wakes once, when the call has ended. Unread text
    is limited to `max_bytes`. Times are the event loop's.
    """

    __slots__ = (
        "_error", "_events", "_has_returned", "_loop", "_max_bytes", "_not_before_s", "_num_bytes", "_timer", "_waiter",
        "first_event_s", "has_ended", "last_event_s", "on_first_event", "waits_for_end",
    )  # fmt: skip

    def __init__(self, *, waits_for_end: bool, max_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._has_returned = False
        self._num_bytes = 0
        self._max_bytes = max_bytes
        self._not_before_s = 0.0
        self.waits_for_end = waits_for_end
        self.has_ended = False
        self.first_event_s: float | None = None
        self.last_event_s: float | None = None
        self.on_first_event: Callable[[Event], None] | None = None

    def put(self, event: Event, now_s: float | None = None) -> None:
        """Add an event that was received at `now_s`, or now."""
        self.last_event_s = self._loop.time() if now_s is None else now_s
        self._events.append(event)
        if self.first_event_s is None:
            self.first_event_s = self.last_event_s
            if self.on_first_event is not None:
                self.on_first_event(event)
        kind = type(event)
        if kind is Token or kind is ToolCallDelta:
            text = event.text if kind is Token else event.arguments  # type: ignore[union-attr]  # narrowed by `kind`
            self._add_bytes(len(text))
        elif kind is Data:
            self._add_bytes(len(event.data))  # type: ignore[union-attr]  # narrowed by `kind`
        elif kind is Finished or kind is Failed:
            self.has_ended = True
            self._wake()
        if self._timer is None and self._waiter is not None and not self.waits_for_end:
            self._wake_in_time()

    def _add_bytes(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes + _EVENT_OVERHEAD_BYTES
        if self._num_bytes > self._max_bytes:
            self.fail(Overrun())

    @property
    def has_failed(self) -> bool:
        """True if the call ended without its last event."""
        return self._error is not None

    def fail(self, error: Exception) -> None:
        """Make `take` raise `error`. Only the first error counts, and none after the call has ended."""
        if self._error is None and not self.has_ended:
            self._error = error
            self._wake()

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        """Return all events since the last call. Waits until there is one and, unless the call has ended, until
        `not_before_s`. Raises the error passed to `fail`; a reader that has received events receives the rest first."""
        self._not_before_s = not_before_s
        while self._error is None and not self._is_ready():
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
        if self._error is not None and not (self._has_returned and self._events):
            raise self._error
        events, self._events = self._events, []
        self._num_bytes = 0
        self._has_returned = True
        return events

    def _is_ready(self) -> bool:
        if self.has_ended:
            return bool(self._events)
        return bool(self._events) and not self.waits_for_end and self._loop.time() >= self._not_before_s

    def _wake_in_time(self) -> None:
        """Wake the reader as soon as the unread events may be returned: now, or by a timer."""
        if self._is_ready():
            self._wake()
        elif not self.waits_for_end and self._timer is None:
            self._timer = self._loop.call_at(self._not_before_s, self._be_due)

    def _be_due(self) -> None:
        """Called by the timer. The timer decides: the clock may still be a rounding error before `not_before_s`, and
        comparing again would busy-loop until the next millisecond."""
        self._not_before_s = 0.0
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def drain(self) -> list[Event]:
        """Return the unread events without waiting, and clear any error."""
        events, self._events = self._events, []
        self._error = None
        return events
