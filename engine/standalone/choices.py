"""The calls of one request: their events in order, sent whole or as a stream, and counted when they end.

A request's calls start together; a client that disconnects or a failed response ends them all. Knows events, not
bodies.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence

import msgspec

from engine.protocol.events import Event, Failed, Finished, Started
from engine.protocol.joined_events import JoinedEvents
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, render_events
from engine.protocol.tasks.registry import TaskInput
from engine.protocol.wire import Execute
from engine.serving.asgi import ClientDisconnected, Receive, Send, send_response, wait_for_disconnect
from engine.serving.calls import Call, Calls
from engine.standalone.errors import error_frame, of_failure
from telemetry import metrics

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Choices:
    """Started by `begin` while the client waits; always call `close`."""

    def __init__(self, model: str, receive: Receive) -> None:
        self._model = model
        self._began_s = time.monotonic()
        self._events: list[Event] = []
        self._joined: JoinedEvents | None = None
        self._news = asyncio.Event()
        self._has_left = False
        self._calls: list[Call] = []
        self._leaving = asyncio.create_task(wait_for_disconnect(receive))
        self._leaving.add_done_callback(self._on_disconnect)

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

    async def take(self) -> list[Event]:
        """Return the events that arrived since the last call; those of several tasks are joined.

        Raises ClientDisconnected.
        """
        while not self._events and not self._has_left:
            self._news.clear()
            await self._news.wait()
        if self._has_left:
            raise ClientDisconnected
        taken, self._events = self._events, []
        return taken

    def close(self) -> None:
        """Cancel the calls that are still running."""
        self._leaving.cancel()
        for call in self._calls:
            call.cancel()

    def _on_event(self, index: int, event: Event) -> None:
        self._events += [event] if self._joined is None else self._joined.add(index, event)
        self._news.set()
        if isinstance(event, Started) and index == 0:
            metrics.TTFT_SECONDS.labels(self._model).observe(time.monotonic() - self._began_s)
        elif isinstance(event, Finished | Failed):
            _count(self._model, event, time.monotonic() - self._began_s)

    def _on_disconnect(self, leaving: asyncio.Task[None]) -> None:
        if leaving.cancelled():
            return
        self._has_left = True
        self._news.set()


async def tell_whole(choices: Choices, renderer: Renderer, send: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Send one JSON document. Raises HttpError before anything is sent, and ClientDisconnected."""
    outcome = Outcome()
    while outcome.end is None:
        for event in await choices.take():
            outcome.add(event)
    if isinstance(outcome.end, Failed):
        raise of_failure(outcome.end)
    await send_response(send, 200, renderer.whole(outcome), headers=headers)


async def tell_stream(choices: Choices, renderer: Renderer, send: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Send server-sent events, one chunk per event.

    Raises HttpError before anything is sent, and ClientDisconnected. A later failure is the stream's last event, and
    `[DONE]` is then omitted.
    """
    batch = await choices.take()
    for event in batch:
        if isinstance(event, Failed):
            raise of_failure(event)
    await send({"type": "http.response.start", "status": 200, "headers": [*_STREAM_HEADERS, *headers]})
    while True:
        frames = b""
        for event in batch:
            if isinstance(event, Failed):
                await send({"type": "http.response.body", "body": frames + error_frame(of_failure(event))})
                return
            frames += render_events([event], renderer)
            if isinstance(event, Finished):
                await send({"type": "http.response.body", "body": frames})
                return
        if frames:
            await send({"type": "http.response.body", "body": frames, "more_body": True})
        batch = await choices.take()


def _count(model: str, end: Finished | Failed, seconds: float) -> None:
    outcome = "finished" if isinstance(end, Finished) else end.reason
    metrics.CALLS.labels(model, outcome).inc()
    metrics.CALL_SECONDS.labels(model).observe(seconds)
    metrics.PROMPT_TOKENS.labels(model).inc(end.usage.prompt_tokens)
    metrics.CACHED_TOKENS.labels(model).inc(end.usage.cached_tokens)
    metrics.COMPLETION_TOKENS.labels(model).inc(end.usage.completion_tokens)
