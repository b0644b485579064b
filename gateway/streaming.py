"""Send a call's events to the client: one JSON body, or server-sent events.

The first token is sent at once; later tokens are collected for at most 20 ms per write. After the first frame an error
is an event instead of a status, and the stream has no `[DONE]`. A client that stops reading is disconnected.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from typing import Protocol

from engine.protocol.events import Event, Failed, Finished
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import EVENT_STREAM, Renderer, render_events
from gateway import envelope
from gateway.errors import Reason, Refusal, failure, refusal_of
from gateway.http.exchange import Exchange
from storage.errors import StoreError

COALESCE_S = 0.020


class Events(Protocol):
    """The events of a call; the last is Finished or Failed."""

    @property
    def micro_neurons(self) -> int: ...

    async def take(self, not_before_s: float = 0.0) -> list[Event]: ...


class OwnErrorFrame(Renderer, ABC):
    """A renderer of a format whose clients expect an error frame of their own."""

    @abstractmethod
    def error(self, refusal: Refusal) -> bytes:
        """Return the last frame of a stream that ends with this refusal."""


def error_frame(renderer: Renderer, refusal: Refusal) -> bytes:
    """Return the last frame of a broken stream; by default one that native and OpenAI clients both read."""
    return renderer.error(refusal) if isinstance(renderer, OwnErrorFrame) else envelope.error_frame(refusal)


async def collect(events: Events) -> Outcome:
    """Return the outcome of an unstreamed call. Raises Refusal if the call failed."""
    outcome = Outcome()
    for event in await events.take():
        outcome.add(event)
    if isinstance(outcome.end, Failed):
        raise failure(outcome.end.reason, outcome.end.message, outcome.end.retry_after_s)
    return outcome


async def send_whole(events: Events, renderer: Renderer, exchange: Exchange, *, is_enveloped: bool) -> None:
    """Send one whole body. Raises Refusal, OutputNotJson before anything is sent."""
    outcome = await collect(events)
    neurons = f"{events.micro_neurons / 1e6:.2f}".encode()
    body = renderer.whole(outcome)
    content_type = (b"content-type", renderer.media_type.encode())
    is_enveloped = is_enveloped and renderer.media_type == "application/json"
    body = envelope.wrap(body) if is_enveloped else body
    await exchange.send_whole(200, body, [(b"cf-ai-neurons", neurons)], content_type)


async def send_stream(events: Events, renderer: Renderer, exchange: Exchange) -> None:
    """Send a stream. Raises Refusal before anything is sent. A later failure is the last event of an event stream; the
    connection of another stream is aborted, so that the client does not take the beginning for the whole."""
    batch = await events.take()
    if isinstance(batch[-1], Failed):
        raise failure(
            batch[-1].reason, batch[-1].message, batch[-1].retry_after_s
        )  # nothing was sent yet, so the client gets a status
    loop = asyncio.get_running_loop()
    if renderer.stream_media_type == EVENT_STREAM:
        exchange.error_frame = functools.partial(error_frame, renderer)
    await exchange.start_stream(renderer.stream_media_type)
    while True:
        frames, last = render_events(batch, renderer), batch[-1]
        if isinstance(last, Finished):
            await exchange.end_stream(frames, is_whole=True)
            return
        if frames:
            await exchange.write(frames)
        if isinstance(last, Failed):
            await exchange.abort_response(failure(last.reason, last.message))
            return
        try:
            batch = await events.take(loop.time() + COALESCE_S if frames else 0.0)
        except (Refusal, StoreError) as error:
            await exchange.abort_response(refusal_of(error) or Refusal(Reason.INTERNAL))
            return
