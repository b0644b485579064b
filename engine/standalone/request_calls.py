"""The calls of one request: their events in order, sent whole or as a stream, and counted when they end.

A request's calls start together; a client that disconnects or a failed response ends them all. Knows events, not
bodies.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Sequence

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from engine.protocol.events import Event, Failed, Finished, Started
from engine.protocol.joined_events import JoinedEvents
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, render_events
from engine.protocol.tasks.registry import TaskInput
from engine.protocol.wire import Execute
from engine.serving.asgi import ClientDisconnected, wait_for_disconnect
from engine.serving.calls import Call, Calls
from engine.standalone.errors import error_frame, of_failure
from telemetry import metrics


class RequestCalls:
    """Started by `begin` while the client waits; always call `close`."""

    def __init__(self, model: str, receive: Receive) -> None:
        self._model = model
        self._began_s = time.monotonic()
        self._events: list[Event] = []
        self._joined: JoinedEvents | None = None
        self._has_news = asyncio.Event()  # events, or the client's disconnect
        self._calls: list[Call] = []
        self._disconnect = asyncio.create_task(wait_for_disconnect(receive))
        self._disconnect.add_done_callback(lambda _: self._has_news.set())

    def begin(self, calls: Calls, tasks: Sequence[TaskInput], request: Execute) -> None:
        """Start one call per task; `request` is the Execute of all of them except for the task."""
        if len(tasks) > 1:
            self._joined = JoinedEvents(len(tasks), tasks[0].num_choices)
        for index, task in enumerate(tasks):
            execute = msgspec.structs.replace(request, call_id=index, task=task)
            call = calls.begin(execute, functools.partial(self._on_event, index))
            if call is None:
                return  # the refusal event that was received ends all calls
            self._calls.append(call)

    async def next_events(self) -> list[Event]:
        """Return the events that arrived since the last call, at least one; those of several tasks are joined.

        Raises ClientDisconnected.
        """
        while not self._events and not self._disconnect.done():
            self._has_news.clear()
            await self._has_news.wait()
        if self._disconnect.done():
            raise ClientDisconnected
        events, self._events = self._events, []
        return events

    async def first_events(self) -> list[Event]:
        """Return the first events of a stream. Raises HttpError if the calls have failed, and ClientDisconnected."""
        events = await self.next_events()
        if isinstance(events[-1], Failed):
            raise of_failure(events[-1])
        return events

    async def outcome(self) -> Outcome:
        """Return the outcome of calls that succeed. Raises HttpError, ClientDisconnected."""
        outcome = Outcome()
        while outcome.end is None:
            for event in await self.next_events():
                outcome.add(event)
        if isinstance(outcome.end, Failed):
            raise of_failure(outcome.end)
        return outcome

    def close(self) -> None:
        """Cancel the calls that are still running."""
        self._disconnect.cancel()
        for call in self._calls:
            call.cancel()

    def _on_event(self, index: int, event: Event) -> None:
        self._events += [event] if self._joined is None else self._joined.add(index, event)
        self._has_news.set()
        if isinstance(event, Started) and index == 0:
            metrics.TTFT_SECONDS.labels(self._model).observe(time.monotonic() - self._began_s)
        elif isinstance(event, Finished | Failed):
            _count(self._model, event, time.monotonic() - self._began_s)


class EventStream(StreamingResponse):
    """Server-sent events of calls, one frame per event. A failure is the last event, and `[DONE]` is then omitted.

    Raises ClientDisconnected. Closes the calls at the end.
    """

    def __init__(self, calls: RequestCalls, first_events: list[Event], renderer: Renderer) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(_frames(calls, first_events, renderer), headers=headers, media_type="text/event-stream")
        self._calls = calls

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        try:
            await self.stream_response(send)  # without starlette's wait for a disconnect: the calls have their own
        finally:
            self._calls.close()


async def _frames(calls: RequestCalls, events: list[Event], renderer: Renderer) -> AsyncIterator[bytes]:
    while True:
        frames = b"".join([_frame(event, renderer) for event in events])
        if frames:
            yield frames
        if isinstance(events[-1], Finished | Failed):
            return
        events = await calls.next_events()


def _frame(event: Event, renderer: Renderer) -> bytes:
    return error_frame(of_failure(event)) if isinstance(event, Failed) else render_events([event], renderer)


def _count(model: str, end: Finished | Failed, seconds: float) -> None:
    outcome = "finished" if isinstance(end, Finished) else end.reason
    metrics.CALLS.labels(model, outcome).inc()
    metrics.CALL_SECONDS.labels(model).observe(seconds)
    metrics.PROMPT_TOKENS.labels(model).inc(end.usage.prompt_tokens)
    metrics.CACHED_TOKENS.labels(model).inc(end.usage.cached_tokens)
    metrics.COMPLETION_TOKENS.labels(model).inc(end.usage.completion_tokens)
