"""Anthropic's `message`, whole and as its events: blocks that open, grow and close one after the other. Pure.

What is constant in the events of a block is rendered once. A stream ends with `message_stop`; one that breaks with an
`error` event.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from engine.protocol.events import ChoiceEnded, Finished, Started, TokenLogprob, ToolCallDelta, Usage
from engine.protocol.outcome import Outcome
from gateway import envelope
from gateway.errors import Refusal
from gateway.shapes.begun_json import as_far_as_whole
from gateway.shapes.shape import NotStreamed

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%s":'


class MessageText:
    """One message."""

    def __init__(self, request_id: str, model: str) -> None:
        self._head = {
            "id": f"msg_{request_id.replace('-', '')}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._num_blocks = 0
        self._open_block: int | str | None = None  # the number of the call that it tells, or else its type
        self._has_begun = False
        self._delta = b""  # the head of the open block's next event, up to the text itself

    def whole(self, outcome: Outcome) -> bytes:
        content: list[dict[str, Any]] = []
        if outcome.choices[0].reasoning:
            content.append({"type": "thinking", "thinking": outcome.choices[0].reasoning, "signature": ""})
        if outcome.text or not outcome.tool_calls:
            content.append({"type": "text", "text": outcome.text})
        for call in outcome.tool_calls:
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input_of(call.arguments)})
        finished = outcome.finished
        return envelope.encode(self._head | {"content": content, **_why(finished), "usage": _usage(finished.usage)})

    def begin(self, started: Started) -> bytes:
        self._has_begun = True
        usage = Usage(prompt_tokens=started.prompt_tokens, cached_tokens=started.cached_tokens)
        message: dict[str, Any] = self._head | {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }
        return _event("message_start", message=message) + _event("ping")

    def text(self, text: str, _logprobs: Sequence[TokenLogprob], _choice: int = 0) -> bytes:
        frames = b""
        if self._open_block != "text":
            frames = self._close() + self._open("text", {"type": "text", "text": ""}, b'text_delta","text')
        return frames + self._delta + envelope.encode(text) + b"}}\n\n"

    def reasoning(self, text: str, _choice: int = 0) -> bytes:
        frames = b""
        if self._open_block != "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
            frames = self._close() + self._open("thinking", block, b'thinking_delta","thinking')
        return frames + self._delta + envelope.encode(text) + b"}}\n\n"

    def tool_call(self, delta: ToolCallDelta) -> bytes:
        frames = b""
        if self._open_block != delta.index:
            block: dict[str, Any] = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
            frames = self._close() + self._open(delta.index, block, b'input_json_delta","partial_json')
        if not delta.arguments:
            return frames
        return frames + self._delta + envelope.encode(delta.arguments) + b"}}\n\n"

    def choice_end(self, _ended: ChoiceEnded) -> bytes:
        raise AssertionError("this shape has room for one choice")

    def end(self, finished: Finished) -> bytes:
        frames = self._close() + _event("message_delta", delta=_why(finished), usage=_usage(finished.usage))
        return frames + _event("message_stop")

    def error(self, refusal: Refusal) -> bytes:
        return _event("error", error=envelope.anthropic_error(refusal))

    def _open(self, kind: int | str, block: dict[str, Any], delta: bytes) -> bytes:
        index = self._num_blocks
        self._num_blocks += 1
        self._open_block = kind
        self._delta = _DELTA % (index, delta)
        return _event("content_block_start", index=index, content_block=block)

    def _close(self) -> bytes:
        """The frames that end the open block; of an answer that has not begun, those that begin it."""
        if not self._has_begun:
            return self.begin(Started())
        if self._open_block is None:
            return b""
        self._open_block = None
        return _event("content_block_stop", index=self._num_blocks - 1)


class CountedTokens(NotStreamed):
    """How many tokens a message's prompt has."""

    def whole(self, outcome: Outcome) -> bytes:
        return envelope.encode({"input_tokens": outcome.started.prompt_tokens})


def _why(finished: Finished) -> dict[str, Any]:
    """Why an answer ended."""
    reason = _STOP_REASONS[finished.reason] if finished.stop is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": finished.stop}


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + envelope.encode({"type": kind, **fields}) + b"\n\n"


def _input_of(arguments: str) -> Any:
    """The object that a call's arguments spell; what is whole of it where they were cut short."""
    for text in (arguments, as_far_as_whole(arguments)):
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            if isinstance(msgspec.json.decode(text), dict):
                return msgspec.Raw(text.encode())
    return {}


def _usage(usage: Usage) -> dict[str, int]:
    """The prompt's tokens that were read from the cache count apart from the others."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
