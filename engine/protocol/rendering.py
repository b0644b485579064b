"""Rendering of responses: the interface of every renderer, and the parts that several formats share. Pure.

A renderer turns a call's output into one JSON document, or piece by piece into frames of an event stream. Renderers
know nothing of HTTP, of envelopes or of errors: the server adds those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engine.protocol.events import (
    ChoiceEnded,
    Data,
    Event,
    Finished,
    Started,
    Token,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from engine.protocol.outcome import Outcome
from engine.protocol.tools import ToolCall

DONE = b"data: [DONE]\n\n"
EVENT_STREAM = "text/event-stream"

encode = msgspec.json.Encoder().encode


class OutputNotJson(ValueError):
    """The output was requested as JSON and is not readable JSON."""


class Renderer:
    """One response format. `whole` returns a JSON document and raises OutputNotJson; the other methods return complete
    frames of an event stream, or b"" if the format has nothing to send for the event.

    Abstract: subclasses implement `whole` and the methods for the events that a stream of their task can have. Other
    methods raise NotImplementedError because they are never called.
    """

    media_type = "application/json"
    """The media type of `whole`, which returns bytes of another kind for some tasks and formats."""

    stream_media_type = EVENT_STREAM
    """The media type of a stream. If it is another one, the stream has the bytes of the output and no frames."""

    def whole(self, outcome: Outcome) -> bytes:
        raise NotImplementedError

    def whole_json(self, outcome: Outcome) -> bytes:
        """Return `whole` as a JSON document, for batches. Binary output is in base64."""
        return self.whole(outcome)

    def begin(self, started: Started) -> bytes:  # noqa: ARG002
        return b""

    def text(self, text: str, logprobs: Sequence[TokenLogprob], choice: int = 0) -> bytes:
        raise NotImplementedError

    def reasoning(self, text: str, choice: int = 0) -> bytes:
        raise NotImplementedError

    def tool_call(self, delta: ToolCallDelta) -> bytes:
        raise NotImplementedError

    def data(self, data: bytes) -> bytes:
        raise NotImplementedError

    def choice_end(self, ended: ChoiceEnded) -> bytes:
        raise NotImplementedError

    def end(self, finished: Finished) -> bytes:
        raise NotImplementedError


class PromptTokenCount(Renderer):
    """The number of tokens in a prompt, as `{**head, "input_tokens": n}`."""

    def __init__(self, head: dict[str, Any]) -> None:
        self._head = head

    def whole(self, outcome: Outcome) -> bytes:
        return encode(self._head | {"input_tokens": outcome.started.prompt_tokens})


def data_frame(document: bytes) -> bytes:
    """Return an unnamed event with this document; b"" for an empty one."""
    return b"data: " + document + b"\n\n" if document else b""


def render_events(events: Sequence[Event], renderer: Renderer) -> bytes:
    """Return the frames of consecutive events. Adjacent text of one choice becomes one frame. Failed is left to the
    caller."""
    if _is_plain_text(events):
        text = "".join([event.text for event in events])  # type: ignore[union-attr]  # all are Tokens
        return renderer.text(text, ()) if text else b""
    frames = b""
    pending: dict[int, _PendingText] = {}
    finished: Finished | None = None
    for event in events:
        if isinstance(event, Token):
            if event.is_reasoning and event.choice in pending and pending[event.choice].texts:
                frames += _flush(pending, event.choice, renderer)
            of_choice = pending.get(event.choice)
            if of_choice is None:
                of_choice = pending[event.choice] = _PendingText()
            (of_choice.reasoning if event.is_reasoning else of_choice.texts).append(event.text)
            if event.logprobs:
                of_choice.logprobs += event.logprobs
        elif isinstance(event, ToolCallDelta):
            frames += _flush(pending, event.choice, renderer) + renderer.tool_call(event)
        elif isinstance(event, ChoiceEnded):
            frames += _flush(pending, event.choice, renderer) + renderer.choice_end(event)
        elif isinstance(event, Data):
            frames += renderer.data(event.data)
        elif isinstance(event, Started):
            frames += renderer.begin(event)
        elif isinstance(event, Finished):
            finished = event
    for choice in list(pending):
        frames += _flush(pending, choice, renderer)
    return frames if finished is None else frames + renderer.end(finished)


class _PendingText:
    """Reasoning and the text after it, of one choice, that is not rendered yet."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.texts: list[str] = []
        self.logprobs: list[TokenLogprob] = []


def _is_plain_text(events: Sequence[Event]) -> bool:
    """Return True if the events are text of the first choice and nothing else, as nearly all batches are."""
    for event in events:
        if type(event) is not Token or event.choice or event.is_reasoning or event.logprobs:
            return False
    return True


def _flush(pending: dict[int, _PendingText], choice: int, renderer: Renderer) -> bytes:
    """Return one frame for the reasoning of a choice and one for its text, as far as there is any."""
    found = pending.pop(choice, None)
    if found is None:
        return b""
    text = found.texts[0] if len(found.texts) == 1 else "".join(found.texts)
    frame = renderer.reasoning("".join(found.reasoning), choice) if found.reasoning else b""
    return frame + renderer.text(text, found.logprobs, choice) if text or found.logprobs else frame


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return token counts as the native and OpenAI formats have them."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def logprobs_object(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return the `logprobs` of a chat choice."""
    return {"content": [_logprob_entry(entry) for entry in logprobs], "refusal": None}


def _logprob_entry(entry: TokenLogprob) -> dict[str, Any]:
    """Return one token's entry. The text of a token inside a multi-byte character is a replacement character; its
    `bytes` are exact."""
    texts = ((entry.text, entry.logprob), *entry.top)
    all_bytes = entry.token_bytes or tuple(text.encode() for text, _ in texts)
    own, *others = [
        {"token": text, "logprob": logprob, "bytes": list(token_bytes)}
        for (text, logprob), token_bytes in zip(texts, all_bytes, strict=True)
    ]
    return own | {"top_logprobs": others}


def tool_call_object(call: ToolCall) -> dict[str, Any]:
    """Return a tool call of a message; `arguments` remain JSON text."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def tool_call_delta_object(delta: ToolCallDelta) -> dict[str, Any]:
    """Return a piece of a tool call; only the first has id, type and name."""
    if delta.name is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}
