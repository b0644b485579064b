"""The running calls of one request: start them, and read their events as one stream.

A request with a list of prompts has several calls. Each is metered and recorded by itself; if one fails, all end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import structs

from engine.protocol.events import Event, Failed, Finished
from engine.protocol.joined_events import JoinedEvents
from gateway.call import Call
from gateway.dispatch import Dispatch
from gateway.metering import MeteredEvents
from gateway.request_context import RequestContext
from gateway.traced_dispatch import TracedDispatch, begin_trace
from tenants.usage.usage_entries import UsageEntry

MAX_CONCURRENT = 32  # calls of one request that run on nodes at the same time
MAX_UNREAD_EVENTS = 4096  # limit for a stream whose client reads slowly


def start_calls(
    context: RequestContext, calls: Sequence[Call], on_first_output: Callable[[], None] | None
) -> RunningCalls:
    """Return the events of the calls. The first `take` sends the calls to nodes; `close` must be awaited in any case.
    `on_first_output` is called when a call has output."""
    services = context.services

    def on_settled(entry: UsageEntry) -> None:
        services.demand.record(entry)
        services.call_feed.record(entry)
        services.cost_ranking.record(entry)

    services.demand.begin(context.model.card.name)
    metered = [
        MeteredEvents(
            call,
            _dispatch(context, call),
            context.ledger,
            services.settings.pop,
            services.clock,
            services.retry_tracker,
            on_first_output,
            on_settled,
        )
        for call in calls
    ]
    return metered[0] if len(metered) == 1 else JoinedCalls(metered, calls[0].task.num_choices)


def _dispatch(context: RequestContext, call: Call) -> Dispatch:
    """Return the dispatch of a call, traced if traces are exported and the call is sampled."""
    services = context.services
    if services.tracing is not None:
        elapsed_s = services.clock.monotonic_s() - context.started_s
        trace = begin_trace(services.tracing, call, context.traceparent, elapsed_s)
        if trace is not None:
            call = structs.replace(call, traceparent=trace.traceparent)
            return TracedDispatch(call, services.node_selector, services.timeouts, services.failover, trace)
    return Dispatch(call, services.node_selector, services.timeouts, services.failover)


class JoinedCalls:
    """The events of several calls with `num_choices` choices each, as those of one call that has the choices of all.
    Has the interface of `MeteredEvents`."""

    def __init__(self, calls: Sequence[MeteredEvents], num_choices: int) -> None:
        self._calls = calls
        self._joined = JoinedEvents(len(calls), num_choices)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._readers: list[asyncio.Task[None]] = []
        self._unread: list[Event] = []
        self._changed = asyncio.Condition()  # notified when any of the following fields or `_unread` has changed
        self._error: Exception | None = None
        self._has_ended = False

    @property
    def micro_neurons(self) -> int:
        return sum(call.micro_neurons for call in self._calls)

    @property
    def num_tokens(self) -> int:
        return sum(call.num_tokens for call in self._calls)

    async def take(self, not_before_s: float = 0.0) -> list[Event]:
        """Return the next events in order of arrival, or all events if the calls are not streamed.

        Raises the first error of any call.
        """
        if not self._readers:
            self._readers = [asyncio.create_task(self._read_or_fail(index)) for index in range(len(self._calls))]
        is_stream = self._calls[0].is_stream
        async with self._changed:
            await self._changed.wait_for(lambda: self._error or self._has_ended or (is_stream and self._unread))
        wait_s = not_before_s - asyncio.get_running_loop().time()
        if wait_s > 0 and self._error is None and not self._has_ended:
            await asyncio.sleep(wait_s)
        if self._error is not None:
            raise self._error
        events, self._unread = self._unread, []
        await self._notify()
        return events

    async def _read_or_fail(self, index: int) -> None:
        try:
            async with self._slots:
                await self._read(index)
        except Exception as error:  # raised again by `take`
            self._error = self._error or error
            await self._notify()

    async def _read(self, index: int) -> None:
        """Read one call to its end, and wait whenever `take` falls behind."""
        last: Event | None = None
        while not self._has_ended and not isinstance(last, Finished | Failed):
            events = await self._calls[index].take()
            last = events[-1]
            for event in events:
                self._unread += self._joined.add(index, event)
            self._has_ended |= self._joined.has_ended
            await self._notify()
            async with self._changed:
                await self._changed.wait_for(lambda: self._has_ended or len(self._unread) <= MAX_UNREAD_EVENTS)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

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
        self.stop()  # no effect on calls that have ended; no call is interrupted while it settles
        await self._notify()
        await asyncio.gather(*self._readers)
        await asyncio.gather(*(call.close() for call in self._calls))


RunningCalls = MeteredEvents | JoinedCalls
