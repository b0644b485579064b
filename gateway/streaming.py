"""Events -> SSE frames or one JSON body, sent at the pace that suits both ends.

The first token goes out at once; later ones are gathered for 20 ms at most. After the first frame an error is an
event, not a status, and such a stream has no `[DONE]`. A client that reads nothing for too long is cut off.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from engine.protocol.events import Event, Failed, Finished, Token, TokenLogprob, ToolCallDelta
from engine.protocol.outcome import Outcome
from gateway import envelope
from gateway.errors import Reason, Refusal, failure, refusal_of
from gateway.exchange import Exchange
from gateway.shapes import Shape
from storage.errors import StoreError

COALESCE_S = 0.020


class Events(Protocol):
    """The events of a call, ended by Finished or Failed."""

    micro_neurons: int

    async def take(self, not_before_s: float = 0.0) -> list[Event]: ...


async def answer_whole(events: Events, shape: Shape, exchange: Exchange) -> None:
    """One JSON body. Raises Refusal before anything is sent."""
    outcome = Outcome()
    for event in await events.take():
        outcome.add(event)
    if isinstance(outcome.end, Failed):
        raise failure(outcome.end.reason, outcome.end.message)
    neurons = f"{events.micro_neurons / 1e6:.2f}".encode()
    await exchange.answer(200, shape.whole(outcome), [(b"cf-ai-neurons", neurons)])


async def answer_stream(events: Events, shape: Shape, exchange: Exchange, *, client_stall_timeout_s: float) -> None:
    """An event stream. Raises Refusal before anything is sent; later, what goes wrong is the stream's last event."""
    batch = await events.take()
    if isinstance(batch[-1], Failed):
        # Whatever came with it was never shown: the client gets a status.
        raise failure(batch[-1].reason, batch[-1].message)
    loop = asyncio.get_running_loop()
    await exchange.start_stream(client_stall_timeout_s)
    while True:
        frames, has_ended = _frames(batch, shape)
        if has_ended:
            await exchange.end_stream(frames)
            return
        if frames:
            await exchange.write(frames)
        try:
            batch = await events.take(loop.time() + COALESCE_S if frames else 0.0)
        except (Refusal, StoreError) as error:
            await exchange.end_stream(error_frame(refusal_of(error) or Refusal(Reason.INTERNAL)))
            return


def _frames(batch: list[Event], shape: Shape) -> tuple[bytes, bool]:
    """The bytes for a batch, and whether the stream ends with them."""
    frames = b""
    texts: list[str] = []
    logprobs: list[TokenLogprob] = []
    end: Finished | Failed | None = None
    for event in batch:
        if isinstance(event, Token):
            texts.append(event.text)
            if event.logprobs:
                logprobs += event.logprobs
        elif isinstance(event, ToolCallDelta):
            frames += _text_frame(texts, logprobs, shape) + shape.tool_call(event)
            texts, logprobs = [], []
        elif isinstance(event, Finished | Failed):
            end = event
    frames += _text_frame(texts, logprobs, shape)
    if isinstance(end, Finished):
        return frames + shape.end(end), True
    if isinstance(end, Failed):
        return frames + error_frame(failure(end.reason, end.message)), True
    return frames, False


def _text_frame(texts: list[str], logprobs: list[TokenLogprob], shape: Shape) -> bytes:
    """One frame for texts that follow each other; nothing for none."""
    text = texts[0] if len(texts) == 1 else "".join(texts)
    return shape.text(text, logprobs) if text or logprobs else b""


def error_frame(refusal: Refusal) -> bytes:
    """The last event of a stream that breaks; the same in both families."""
    body = {"error": envelope.openai_error(refusal), "errors": [{"code": refusal.row.code, "message": refusal.message}]}
    return b"data: " + envelope.encode(body) + b"\n\n"
