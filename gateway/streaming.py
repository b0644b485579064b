"""Events -> SSE frames or one JSON body, sent at the pace that suits both ends.

The first token goes out at once; later ones are gathered for 20 ms at most. After the first frame an error is an
event, not a status, and such a stream has no `[DONE]`. A client that reads nothing for too long is cut off.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from engine.protocol.events import ChoiceEnded, Event, Failed, Finished, Started, Token, TokenLogprob, ToolCallDelta
from engine.protocol.outcome import Outcome
from gateway.errors import Reason, Refusal, failure, refusal_of
from gateway.http.exchange import Exchange
from gateway.shapes.shape import Shape
from storage.errors import StoreError

COALESCE_S = 0.020
_ENDS = (Finished, Failed)


class Events(Protocol):
    """The events of a call, ended by Finished or Failed."""

    @property
    def micro_neurons(self) -> int: ...

    async def take(self, not_before_s: float = 0.0) -> list[Event]: ...


async def whole_of(events: Events) -> Outcome:
    """All that an unstreamed call produced. Raises Refusal."""
    outcome = Outcome()
    for event in await events.take():
        outcome.add(event)
    if isinstance(outcome.end, Failed):
        raise failure(outcome.end.reason, outcome.end.message)
    return outcome


async def answer_whole(events: Events, shape: Shape, exchange: Exchange) -> None:
    """One JSON body. Raises Refusal before anything is sent."""
    outcome = await whole_of(events)
    neurons = f"{events.micro_neurons / 1e6:.2f}".encode()
    await exchange.send_json(200, shape.whole(outcome), [(b"cf-ai-neurons", neurons)])


async def answer_stream(events: Events, shape: Shape, exchange: Exchange, *, client_stall_timeout_s: float) -> None:
    """An event stream. Raises Refusal before anything is sent; later, what goes wrong is the stream's last event."""
    batch = await events.take()
    if isinstance(batch[-1], Failed):
        # Whatever came with it was never shown: the client gets a status.
        raise failure(batch[-1].reason, batch[-1].message)
    loop = asyncio.get_running_loop()
    exchange.error_frame = shape.error
    await exchange.start_stream(client_stall_timeout_s)
    while True:
        frames, has_ended = _frames(batch, shape)
        if has_ended:
            await exchange.end_stream(frames, is_whole=isinstance(batch[-1], Finished))
            return
        if frames:
            await exchange.write(frames)
        try:
            batch = await events.take(loop.time() + COALESCE_S if frames else 0.0)
        except (Refusal, StoreError) as error:
            await exchange.end_stream(shape.error(refusal_of(error) or Refusal(Reason.INTERNAL)))
            return


class _Gathered:
    """Thoughts, and the texts behind them, that follow each other in one choice."""

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []


def _frames(batch: list[Event], shape: Shape) -> tuple[bytes, bool]:
    """The bytes for a batch, and whether the stream ends with them."""
    if _is_plain_text(batch):
        text = "".join([event.text for event in batch])  # type: ignore[union-attr]  # they are all Tokens
        return shape.text(text, ()) if text else b"", False
    frames = b""
    gathered: dict[int, _Gathered] = {}
    end: Finished | Failed | None = None
    for event in batch:
        if isinstance(event, Token):
            of_choice = gathered.get(event.choice)
            if of_choice is None:
                of_choice = gathered[event.choice] = _Gathered()
            if event.is_reasoning and of_choice.texts:
                frames += _text_frame(gathered, event.choice, shape)
                of_choice = gathered[event.choice] = _Gathered()
            (of_choice.thoughts if event.is_reasoning else of_choice.texts).append(event.text)
            if event.logprobs:
                of_choice.logprobs += event.logprobs
        elif isinstance(event, ToolCallDelta):
            frames += _text_frame(gathered, event.choice, shape) + shape.tool_call(event)
        elif isinstance(event, ChoiceEnded):
            frames += _text_frame(gathered, event.choice, shape) + shape.choice_end(event)
        elif isinstance(event, _ENDS):
            end = event
        elif isinstance(event, Started):
            frames += shape.begin(event)
    for choice in list(gathered):
        frames += _text_frame(gathered, choice, shape)
    if isinstance(end, Finished):
        return frames + shape.end(end), True
    if isinstance(end, Failed):
        return frames + shape.error(failure(end.reason, end.message)), True
    return frames, False


def _is_plain_text(batch: list[Event]) -> bool:
    """Whether there is nothing but text, of one choice: nearly every batch of nearly every stream."""
    for event in batch:
        if type(event) is not Token or event.choice or event.is_reasoning or event.logprobs:
            return False
    return True


def _text_frame(gathered: dict[int, _Gathered], choice: int, shape: Shape) -> bytes:
    """One frame for the thoughts of a choice and one for its texts; nothing for none."""
    found = gathered.pop(choice, None)
    if found is None:
        return b""
    text = found.texts[0] if len(found.texts) == 1 else "".join(found.texts)
    frame = shape.reasoning("".join(found.thoughts), choice) if found.thoughts else b""
    return frame + shape.text(text, found.logprobs, choice) if text or found.logprobs else frame
