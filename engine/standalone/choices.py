"""The calls behind one request: their events in the order they come, told whole or as a stream; counted when they end.

A request's calls begin together; a client that leaves, or an answer that breaks, ends them all. Knows events, not
bodies.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence

import msgspec

from engine.protocol.events import Event, Failed, Finished, Started, Usage, total_usage
from engine.protocol.outcome import Outcome
from engine.protocol.tasks import TaskInput
from engine.protocol.wire import Execute
from engine.serving.asgi import ClientDisconnected, Receive, Send, send_response, wait_for_disconnect
from engine.serving.calls import Call, Calls
from engine.standalone.errors import error_frame, of_failure
from engine.standalone.shapes import Shape
from telemetry import metrics

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Choices:
    """Made by `begin`, while the client waits; `close` in any case."""

    def __init__(self, model: str, receive: Receive) -> None:
        self.num_tasks = 0
        self._model = model
        self._began_s = time.monotonic()
        self._events: list[tuple[int, Event]] = []
        self._news = asyncio.Event()
        self._has_left = False
        self._calls: list[Call] = []
        self._leaving = asyncio.create_task(wait_for_disconnect(receive))
        self._leaving.add_done_callback(self._on_disconnect)

    def begin(self, calls: Calls, tasks: Sequence[TaskInput], request: Execute) -> None:
        """One call for each task; `request` is the Execute of them all but for the task."""
        for index, task in enumerate(tasks):
            self.num_tasks += 1
            execute = msgspec.structs.replace(request, call_id=index, task=task)
            call = calls.begin(execute, functools.partial(self._on_event, index))
            if call is None:
                return  # its refusal, which we have heard, ends them all
            self._calls.append(call)

    async def take(self) -> list[tuple[int, Event]]:
        """(task, event) of all that was said since the last look. Raises ClientDisconnected."""
        while not self._events and not self._has_left:
            self._news.clear()
            await self._news.wait()
        if self._has_left:
            raise ClientDisconnected
        taken, self._events = self._events, []
        return taken

    def close(self) -> None:
        """End what is still open."""
        self._leaving.cancel()
        for call in self._calls:
            call.cancel()

    def _on_event(self, index: int, event: Event) -> None:
        self._events.append((index, event))
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


async def tell_whole(choices: Choices, shape: Shape, send: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """One JSON body. Raises HttpError before anything is sent, and ClientDisconnected."""
    outcomes = [Outcome() for _ in range(choices.num_tasks)]
    num_ended = 0
    while num_ended < choices.num_tasks:
        for task, event in await choices.take():
            if isinstance(event, Failed):
                raise of_failure(event)
            outcomes[task].add(event)
            num_ended += isinstance(event, Finished)
    await send_response(send, 200, shape.whole(outcomes), headers=headers)


async def tell_stream(choices: Choices, shape: Shape, send: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Server-sent events. Raises HttpError before anything is sent, and ClientDisconnected; what goes wrong later is the last
    event, and such a stream has no `[DONE]`."""
    batch = await choices.take()
    for _, event in batch:
        if isinstance(event, Failed):
            raise of_failure(event)
    await send({"type": "http.response.start", "status": 200, "headers": [*_STREAM_HEADERS, *headers]})
    usages: dict[int, Usage] = {}
    while True:
        frames = b""
        for position, (task, event) in enumerate(batch):
            if isinstance(event, Failed):
                await send({"type": "http.response.body", "body": frames + error_frame(of_failure(event))})
                return
            follower = batch[position + 1] if position + 1 < len(batch) else (-1, None)
            frames += shape.frames(task, event, follower[1] if follower[0] == task else None)
            if isinstance(event, Finished):
                usages[task] = event.usage
        if len(usages) == choices.num_tasks:
            usage = total_usage(list(usages.values()))
            await send({"type": "http.response.body", "body": frames + shape.end(usage)})
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
