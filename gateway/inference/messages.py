"""Anthropic's Messages: `POST A/ai/v1/messages`, and `messages/count_tokens`, which generates nothing and is free.

A streamed message is a sequence of content blocks that start, grow and stop one after another. It ends with
`message_stop`, or with an `error` event if it breaks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.anthropic import read_message_request
from engine.protocol.api_format import ApiFormat
from engine.protocol.events import Finished, Started, TokenLogprob, ToolCallDelta, Usage
from engine.protocol.fields import boolean
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import PromptTokenCount
from engine.protocol.tasks.text_generation import TextGeneration
from gateway import envelope
from gateway.call import Endpoint, ParsedRequest
from gateway.errors import Refusal
from gateway.inference.partial_json import close_partial_json
from gateway.model_names import require_task
from gateway.streaming import OwnErrorFrame

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%s":'


def _parse(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    require_task(card, TextGeneration)
    accepted = input_schema(card, "anthropic_messages").coerce_and_validate(body)
    task = read_message_request(
        accepted, default_max_tokens=card.default_max_tokens, context_window=card.context_window
    )
    return ParsedRequest(
        task,
        boolean(accepted, "stream", False),
        lambda call: MessageRenderer(call.request_id, call.requested_model),
        lora=accepted.get("lora"),
    )


def _parse_count(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    require_task(card, TextGeneration)
    accepted = input_schema(card, "anthropic_message_tokens").coerce_and_validate(body)
    task = read_message_request(accepted, default_max_tokens=1, context_window=card.context_window)
    return ParsedRequest(structs.replace(task, only_counts=True), False, lambda _call: PromptTokenCount({}))


MESSAGES = Endpoint(ApiFormat.ANTHROPIC, "Create a message.", _parse, schemas=("anthropic_messages",))
MESSAGE_TOKENS = Endpoint(
    ApiFormat.ANTHROPIC,
    "Count the input tokens of a message, at no cost.",
    _parse_count,
    schemas=("anthropic_message_tokens",),
)


class MessageRenderer(OwnErrorFrame):
    """Renders one `message`, whole or as events. The constant part of a block's events is rendered once."""

    def __init__(self, request_id: str, model: str) -> None:
        self._head = {
            "id": f"msg_{request_id.replace('-', '')}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._num_blocks = 0
        self._open_block: int | str | None = None  # the index of a tool call, or the type of another block
        self._has_begun = False
        self._delta = b""  # start of the open block's next event, up to the text

    def whole(self, outcome: Outcome) -> bytes:
        content: list[dict[str, Any]] = []
        if outcome.choices[0].reasoning:
            content.append({"type": "thinking", "thinking": outcome.choices[0].reasoning, "signature": ""})
        if outcome.text or not outcome.tool_calls:
            content.append({"type": "text", "text": outcome.text})
        for call in outcome.tool_calls:
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input_of(call.arguments)})
        finished = outcome.finished
        return envelope.encode(
            self._head | {"content": content, **_stop_fields(finished), "usage": _usage(finished.usage)}
        )

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

    def end(self, finished: Finished) -> bytes:
        frames = self._close() + _event("message_delta", delta=_stop_fields(finished), usage=_usage(finished.usage))
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
        """Return the frames that end the open block; before any event, those that begin the message."""
        if not self._has_begun:
            return self.begin(Started())
        if self._open_block is None:
            return b""
        self._open_block = None
        return _event("content_block_stop", index=self._num_blocks - 1)


def _stop_fields(finished: Finished) -> dict[str, Any]:
    reason = _STOP_REASONS[finished.reason] if finished.stop is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": finished.stop}


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + envelope.encode({"type": kind, **fields}) + b"\n\n"


def _input_of(arguments: str) -> Any:
    """Return the object in a tool call's arguments; for arguments that were cut off, their complete members."""
    for text in (arguments, close_partial_json(arguments)):
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            if isinstance(msgspec.json.decode(text), dict):
                return msgspec.Raw(text.encode())
    return {}


def _usage(usage: Usage) -> dict[str, int]:
    """Return token counts; `input_tokens` excludes those read from the prefix cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
