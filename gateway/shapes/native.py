"""Text generation in the legacy shape of Workers AI, whole and as frames of an event stream. Pure.

How bodies of this shape are read is in `native_bodies.py`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.protocol import openai
from engine.protocol.events import ChoiceEnded, Finished, TokenLogprob, ToolCallDelta
from engine.protocol.outcome import Outcome
from engine.protocol.tools import ToolCall
from gateway import envelope
from gateway.errors import Reason, Refusal
from gateway.shapes.shape import DONE, Plain

_FILLER = "abcdefghijklmnopqrstuvwxyz0123456789" * 2
_FILLED_ENDS = [f',"p":"{_FILLER[:size]}"}}\n\n'.encode() for size in range(1, 65)]


class NativeText(Plain):
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
