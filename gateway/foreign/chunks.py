"""Read the responses of an OpenAI-compatible server: chunks of a stream into events, embeddings, and errors. Pure.

A server is not trusted to follow its own protocol: everything is decoded into types, and counts that cannot be right
are ignored. Raises EngineFault, whose message contains nothing of the response.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from engine.protocol.events import (
    Event,
    FailureReason,
    FinishReason,
    Result,
    Token,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from engine.protocol.tasks.text_embeddings import Embeddings, TextEmbeddings
from engine.protocol.tasks.text_generation import TextGeneration

MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_TOOL_CALLS = 128
MAX_PROMPT_TOKENS = 100_000_000
_MAX_MESSAGE = 500  # characters of an engine's error message that a client gets

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "content_filter": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}


class EngineFault(Exception):
    """The engine failed, or broke the protocol. The call may run elsewhere."""

    def __init__(self, why: str, reason: FailureReason = "internal") -> None:
        super().__init__(why)
        self.reason = reason


class _Function(Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(Struct, frozen=True):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _TopLogprob(Struct, frozen=True):
    token: str
    logprob: float


class _TokenLogprob(Struct, frozen=True):
    token: str
    logprob: float
    top_logprobs: list[_TopLogprob] = []


class _Logprobs(Struct, frozen=True):
    """Those of chat completions (`content`) or of completions (the other fields)."""

    content: list[_TokenLogprob] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class _Delta(Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(Struct, frozen=True):
    delta: _Delta = _Delta()
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Cached(Struct, frozen=True):
    cached_tokens: int | None = None


class _Reasoning(Struct, frozen=True):
    reasoning_tokens: int | None = None


class _Usage(Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Reasoning | None = None


class _Chunk(Struct, frozen=True):
    model: str | None = None
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _ErrorObject(Struct, frozen=True):
    message: str = ""
    code: Any = None


class _ErrorBody(Struct, frozen=True):
    error: _ErrorObject | str | None = None
    message: str = ""
    code: Any = None


class _Row(Struct, frozen=True):
    embedding: list[float]
    index: int


class _EmbeddingList(Struct, frozen=True):
    data: list[_Row]
    usage: _Usage | None = None


class _ListedModel(Struct, frozen=True):
    id: str
    owned_by: str = ""


class _ModelList(Struct, frozen=True):
    data: list[_ListedModel]


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_error = msgspec.json.Decoder(_ErrorBody).decode
_decode_embeddings = msgspec.json.Decoder(_EmbeddingList).decode
_decode_models = msgspec.json.Decoder(_ModelList).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class SseDecoder:
    """Returns the `data` of server-sent events from bytes that are split anywhere. Raises EngineFault."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MAX_LINE_BYTES:
            raise EngineFault("sent a line that is too long")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
            elif line.strip() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise EngineFault("sent something that is no event stream")


class ChoiceReader:
    """Reads the stream of one choice. `usage` is None until the engine has reported it; `num_tokens` counts pieces of
    output, which are about as many as tokens."""

    def __init__(self, model: str, choice: int) -> None:
        self._model = model
        self._choice = choice
        self._tool_numbers: set[int] = set()
        self.num_tokens = 0
        self.usage: Usage | None = None
        self.reason: FinishReason | None = None

    def read(self, data: bytes) -> list[Event]:
        """Return the events of one chunk. Raises EngineFault."""
        try:
            chunk = _decode_chunk(data)
        except _UNREADABLE:
            raise EngineFault("sent a chunk that is no chat completion chunk") from None
        if chunk.error is not None:
            raise EngineFault("reported an error during the response")
        if chunk.model and not _is_same_model(chunk.model, self._model):
            raise EngineFault("responded with another model than the requested one", "model_unavailable")
        if chunk.usage is not None:
            self.usage = _usage_of(chunk.usage)
        events: list[Event] = []
        for choice in chunk.choices[:1]:
            events += self._events_of(choice)
        return events

    def _events_of(self, choice: _Choice) -> list[Event]:
        events: list[Event] = []
        delta = choice.delta
        reasoning, text = delta.reasoning_content or delta.reasoning or "", delta.content or choice.text or ""
        logprobs = _logprobs_of(choice.logprobs)
        if reasoning:
            events.append(Token(reasoning, choice=self._choice, is_reasoning=True))
        if text or logprobs:
            num_tokens = max(1, len(logprobs))
            events.append(Token(text, num_tokens, logprobs=logprobs, choice=self._choice))
        events += [self._tool_delta(call) for call in delta.tool_calls or ()]
        self.num_tokens += sum(getattr(event, "num_tokens", 0) for event in events)
        if choice.finish_reason is not None:
            if choice.finish_reason not in _FINISH_REASONS:
                raise EngineFault("ended the response with an unknown reason")
            self.reason = _FINISH_REASONS[choice.finish_reason]
            if self._tool_numbers and self.reason == "stop":
                self.reason = "tool_calls"
        return events

    def _tool_delta(self, call: _ToolCall) -> ToolCallDelta:
        if not 0 <= call.index < MAX_TOOL_CALLS:
            raise EngineFault("sent a tool call with an impossible index")
        is_first = call.index not in self._tool_numbers
        self._tool_numbers.add(call.index)
        function = call.function or _Function()
        if is_first and not function.name:
            raise EngineFault("sent a tool call without a name")
        return ToolCallDelta(
            index=call.index,
            id=(call.id or f"call_{self._choice}_{call.index}") if is_first else None,
            name=function.name if is_first else None,
            arguments=function.arguments or "",
            num_tokens=1,
            choice=self._choice,
        )


def _is_same_model(reported: str, requested: str) -> bool:
    """Return True if an engine's response names the requested model, or a dated version or tag of that model."""
    return reported == requested or reported.startswith((f"{requested}-", f"{requested}:"))


def _logprobs_of(found: _Logprobs | None) -> tuple[TokenLogprob, ...]:
    if found is None:
        return ()
    if found.content is not None:
        return tuple(
            TokenLogprob(each.token, each.logprob, tuple((top.token, top.logprob) for top in each.top_logprobs))
            for each in found.content
        )
    tops = found.top_logprobs or []
    return tuple(
        TokenLogprob(
            token,
            math.nan if logprob is None else logprob,
            tuple((tops[number] or {}).items()) if number < len(tops) else (),
        )
        for number, (token, logprob) in enumerate(zip(found.tokens or (), found.token_logprobs or (), strict=False))
    )


def _usage_of(found: _Usage) -> Usage | None:
    """Return the usage that an engine reports, or None if it cannot be right."""
    prompt_tokens, completion_tokens = found.prompt_tokens, found.completion_tokens or 0
    cached = (found.prompt_tokens_details.cached_tokens if found.prompt_tokens_details else None) or 0
    reasoning = (found.completion_tokens_details.reasoning_tokens if found.completion_tokens_details else None) or 0
    if prompt_tokens <= 0 or completion_tokens < 0 or cached < 0 or reasoning < 0:
        return None
    return Usage(
        prompt_tokens=prompt_tokens,
        cached_tokens=min(cached, prompt_tokens),
        completion_tokens=completion_tokens,
        reasoning_tokens=min(reasoning, completion_tokens),
    )


def plausible_usage(usage: Usage | None, task: TextGeneration) -> Usage | None:
    """Return the reported usage of one choice, or None if it exceeds what the call can have used."""
    if usage is None or usage.completion_tokens > task.sampling.max_tokens or usage.prompt_tokens > MAX_PROMPT_TOKENS:
        return None
    return usage


def read_embeddings(body: bytes, task: TextEmbeddings) -> tuple[Result, int | None]:
    """Return the embeddings in a response, and the reported number of prompt tokens. Raises EngineFault."""
    try:
        found = _decode_embeddings(body)
    except _UNREADABLE:
        raise EngineFault("sent no list of embeddings") from None
    rows = sorted(found.data, key=lambda row: row.index)
    dimensions = len(rows[0].embedding) if rows else 0
    if [row.index for row in rows] != list(range(len(task.texts))) or not dimensions:
        raise EngineFault("sent another number of embeddings than texts")
    if any(len(row.embedding) != dimensions for row in rows):
        raise EngineFault("sent embeddings of different lengths")
    values = array("f", [value for row in rows for value in row.embedding])
    if not all(map(math.isfinite, values)):
        raise EngineFault("sent embeddings that are not finite")
    if sys.byteorder == "big":
        values.byteswap()
    usage = None if found.usage is None else _usage_of(found.usage)
    result = Embeddings((len(rows), dimensions), values.tobytes()).to_result()
    return result, None if usage is None else usage.prompt_tokens


def read_models(body: bytes) -> dict[str, str]:
    """Return model id -> owner of the models that an engine lists. Raises EngineFault."""
    try:
        return {model.id: model.owned_by for model in _decode_models(body).data}
    except _UNREADABLE:
        raise EngineFault("sent no list of models") from None


def fault_of(status: int, body: bytes) -> EngineFault:
    """Return the fault of an error response that is not the client's."""
    if status in (401, 403):
        return EngineFault(f"rejected the API key (HTTP {status})", "model_unavailable")
    if status == 404:
        return EngineFault("does not serve the model (HTTP 404)", "model_unavailable")
    if status in (429, 503):
        return EngineFault(f"is at capacity (HTTP {status})", "out_of_capacity")
    return EngineFault(f"responded with HTTP {status}" + (" and no message" if not body else ""))


def client_error(status: int, body: bytes) -> tuple[FailureReason, str] | None:
    """Return reason and message of an error response that is about the client's input, or None."""
    if status not in (400, 413, 422):
        return None
    try:
        found = _decode_error(body)
    except _UNREADABLE:
        return None
    error = found.error if isinstance(found.error, _ErrorObject) else _ErrorObject(found.message, found.code)
    text = found.error if isinstance(found.error, str) else error.message
    shown = "".join(char if char.isprintable() else " " for char in text)[:_MAX_MESSAGE]
    if error.code == "context_length_exceeded" or "context length" in shown or "context window" in shown:
        return "context_too_long", shown
    return "invalid_input", shown or "the engine rejected the input"
