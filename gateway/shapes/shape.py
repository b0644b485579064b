"""How an answer looks: the native and the OpenAI-compatible shape of each task, whole and as event-stream frames. Pure.

A frame's constant bytes are rendered once for a stream. Knows no transport and no timing: `gateway/streaming.py` has
those.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from engine.protocol import openai
from engine.protocol.events import ChoiceEnded, Finished, Started, TokenLogprob, ToolCallDelta, Usage
from engine.protocol.outcome import Choice, Outcome
from engine.protocol.tasks import ToolCall
from gateway import envelope
from gateway.errors import Reason, Refusal

DONE = b"data: [DONE]\n\n"

_FILLER = "abcdefghijklmnopqrstuvwxyz0123456789" * 2
_FILLED_ENDS = [f',"p":"{_FILLER[:size]}"}}\n\n'.encode() for size in range(1, 65)]


class Shape(Protocol):
    """One way to tell an outcome. The other methods give complete frames: `begin` those before any piece, `end` the
    closing one, `error` the last one of a stream that breaks. `whole` raises Refusal when the
    outcome is not what was asked for."""

    def whole(self, outcome: Outcome) -> bytes: ...
    def begin(self, started: Started) -> bytes: ...
    def text(self, text: str, logprobs: Sequence[TokenLogprob], choice: int = 0) -> bytes: ...
    def reasoning(self, text: str, choice: int = 0) -> bytes: ...
    def tool_call(self, delta: ToolCallDelta) -> bytes: ...
    def choice_end(self, ended: ChoiceEnded) -> bytes: ...
    def end(self, finished: Finished) -> bytes: ...
    def error(self, refusal: Refusal) -> bytes: ...


class _Plain:
    """A shape whose streams begin with what is said, and break alike."""

    def begin(self, _started: Started) -> bytes:
        return b""

    def error(self, refusal: Refusal) -> bytes:
        return error_frame(refusal)


def error_frame(refusal: Refusal) -> bytes:
    """The last event of a stream that breaks; the same in both families."""
    body = {"error": envelope.openai_error(refusal), "errors": [envelope.error_entry(refusal)]}
    return b"data: " + envelope.encode(body) + b"\n\n"


class NativeText(_Plain):
    """Text generation in the legacy shape: `response`, `tool_calls` where there were tools, and `usage`.

    `is_json`: a whole answer's `response` is the value itself. Frames carry a filler that hides their length.
    """

    def __init__(self, *, has_tools: bool = False, is_json: bool = False) -> None:
        self._has_tools = has_tools
        self._is_json = is_json
        self._open_call: int | None = None  # the call that the latest frame was about

    def whole(self, outcome: Outcome) -> bytes:
        result: dict[str, Any] = {"response": self._response(outcome)}
        if self._has_tools:
            result["tool_calls"] = [_native_call(call) for call in outcome.tool_calls]
        return envelope.success(result | {"usage": openai.usage_object(outcome.finished.usage)})

    def _response(self, outcome: Outcome) -> Any:
        if outcome.tool_calls:
            return outcome.text or None
        return _json_value(outcome.text) if self._is_json else outcome.text

    def text(self, text: str, _logprobs: Sequence[TokenLogprob], _choice: int = 0) -> bytes:
        return b'data: {"response":' + envelope.encode(text) + _filled_end()

    def reasoning(self, _text: str, _choice: int = 0) -> bytes:
        """This shape has no place for what is told apart from the text."""
        return b""

    def tool_call(self, delta: ToolCallDelta) -> bytes:
        frames = self._close_call() if self._open_call != delta.index else b""
        self._open_call = delta.index
        return frames + self._call_frame(openai.tool_call_delta(delta))

    def _close_call(self) -> bytes:
        """The all-null entry that ends a call; nothing when none is open."""
        if self._open_call is None:
            return b""
        entry = {"index": self._open_call, "id": None, "type": None, "function": {"name": None, "arguments": None}}
        return self._call_frame(entry)

    def _call_frame(self, entry: dict[str, Any]) -> bytes:
        return b'data: {"response":"","tool_calls":[' + envelope.encode(entry) + b"]" + _filled_end()

    def choice_end(self, _ended: ChoiceEnded) -> bytes:
        raise AssertionError("this shape has room for one choice")

    def end(self, finished: Finished) -> bytes:
        usage = envelope.encode(openai.usage_object(finished.usage))
        return self._close_call() + b'data: {"response":"","usage":' + usage + b"}\n\n" + DONE


def _filled_end() -> bytes:
    return _FILLED_ENDS[int(random.random() * len(_FILLED_ENDS))]  # noqa: S311 - blurs sizes, guards nothing


def _native_call(call: ToolCall) -> dict[str, Any]:
    """A call with its arguments as an object; those of a call that was cut short, or nests beyond reading, stay
    text."""
    value = _readable(call.arguments)
    return {"name": call.name, "arguments": call.arguments if value is None else value}


def _json_value(text: str) -> msgspec.Raw:
    """What an answer in JSON mode spells. Raises Refusal when it spells nothing, or nests beyond reading."""
    value = _readable(text)
    if value is None:
        raise Refusal(Reason.JSON_MODE_FAILED)
    return value


def _readable(text: str) -> msgspec.Raw | None:
    """JSON text, to stand in a body as it is; None for what clients could not read."""
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return msgspec.Raw(text)


class ChatText(_Plain):
    """Text generation as `chat.completion`: bare, or in the envelope for models whose native shape it is."""

    def __init__(
        self,
        request_id: str,
        created: int,
        model: str,
        *,
        has_usage_chunk: bool,
        has_logprobs: bool,
        is_bare: bool,
        is_legacy: bool = False,
        num_choices: int = 1,
    ) -> None:
        self._id = f"chatcmpl-{request_id}"
        self._created = created
        self._model = model
        self._has_usage_chunk = has_usage_chunk
        self._has_logprobs = has_logprobs
        self._is_bare = is_bare
        self._is_legacy = is_legacy
        self._num_choices = num_choices

    @functools.cached_property
    def _chunks(self) -> list[openai.ChatChunks]:
        """Of a stream, one for each choice."""
        return [
            openai.ChatChunks(
                self._id,
                self._created,
                self._model,
                has_usage_chunk=self._has_usage_chunk,
                is_legacy=self._is_legacy,
                index=index,
            )
            for index in range(self._num_choices)
        ]

    def whole(self, outcome: Outcome) -> bytes:
        completion = openai.with_choices(
            [self._completion(choice, outcome.finished.usage) for choice in outcome.choices]
        )
        return envelope.encode(completion) if self._is_bare else envelope.success(completion)

    def _completion(self, choice: Choice, usage: Usage) -> dict[str, Any]:
        return openai.chat_completion(
            self._id,
            self._created,
            self._model,
            choice.text,
            choice.why,
            usage,
            choice.logprobs if self._has_logprobs else None,
            choice.tool_calls,
            reasoning=choice.reasoning,
            is_legacy=self._is_legacy,
        )

    def text(self, text: str, logprobs: Sequence[TokenLogprob], choice: int = 0) -> bytes:
        return b"data: " + self._chunks[choice].text(text, logprobs) + b"\n\n"

    def reasoning(self, text: str, choice: int = 0) -> bytes:
        chunk = self._chunks[choice].reasoning(text)
        return b"data: " + chunk + b"\n\n" if chunk else b""

    def tool_call(self, delta: ToolCallDelta) -> bytes:
        chunk = self._chunks[delta.choice].tool_call(delta)
        return b"data: " + chunk + b"\n\n" if chunk else b""

    def choice_end(self, ended: ChoiceEnded) -> bytes:
        return b"data: " + self._chunks[ended.choice].end(ended.reason) + b"\n\n"

    def end(self, finished: Finished) -> bytes:
        frames = self.choice_end(ChoiceEnded(0, finished.reason)) if len(self._chunks) == 1 else b""
        if self._has_usage_chunk:
            frames += b"data: " + self._chunks[0].usage(finished.usage) + b"\n\n"
        return frames + DONE


class NotStreamed(_Plain):
    """A shape that has no pieces."""

    def text(self, _text: str, _logprobs: Sequence[TokenLogprob], _choice: int = 0) -> bytes:
        raise AssertionError("this task does not stream")

    def choice_end(self, _ended: ChoiceEnded) -> bytes:
        raise AssertionError("this task does not stream")

    def reasoning(self, _text: str, _choice: int = 0) -> bytes:
        raise AssertionError("this task does not stream")

    def tool_call(self, _delta: ToolCallDelta) -> bytes:
        raise AssertionError("this task does not stream")

    def end(self, _finished: Finished) -> bytes:
        raise AssertionError("this task does not stream")


class NativeEmbeddings(NotStreamed):
    """`{shape, data, pooling}`."""

    def whole(self, outcome: Outcome) -> bytes:
        assert outcome.embeddings is not None
        embeddings = outcome.embeddings
        result: dict[str, Any] = {
            "shape": embeddings.shape,
            "data": openai.vectors(embeddings),
            "pooling": embeddings.pooling,
        }
        return envelope.success(result)


class OpenAIEmbeddings(NotStreamed):
    """The OpenAI list of embeddings, bare."""

    def __init__(self, model: str, encoding: Literal["float", "base64"]) -> None:
        self._model = model
        self._encoding = encoding

    def whole(self, outcome: Outcome) -> bytes:
        assert outcome.embeddings is not None
        return envelope.encode(
            openai.embeddings_object(self._model, outcome.embeddings, outcome.finished.usage, self._encoding)
        )
