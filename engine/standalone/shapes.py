"""How an answer looks: chat and text completions, whole and as event-stream frames, for one prompt or many. Pure.

One chunk for each event, so that what a client times is what the engine did; usage counts each prompt once and every
token that was generated for it. A task is one prompt, a choice one of its answers. Knows no transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from engine.protocol import completions, openai
from engine.protocol.completions import CompletionChunks
from engine.protocol.events import (
    ChoiceEnded,
    Event,
    Finished,
    FinishReason,
    Started,
    Token,
    ToolCallDelta,
    Usage,
    total_usage,
)
from engine.protocol.openai import ChatChunks
from engine.protocol.outcome import Outcome

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class Shape(Protocol):
    """`whole` gets the outcome of each task, in their order. `frames` are those of one task's event, `next_event` being
    the one that followed at once; `end` closes a stream that went well."""

    def whole(self, outcomes: Sequence[Outcome]) -> bytes: ...
    def frames(self, task: int, event: Event, next_event: Event | None) -> bytes: ...
    def end(self, usage: Usage) -> bytes: ...


class ChatShape:
    """`chat.completion`, and its chunks: the first of a choice names the role."""

    def __init__(
        self,
        completion_id: str,
        created: int,
        model: str,
        *,
        num_choices: int,
        has_usage_chunk: bool,
        has_logprobs: bool,
        is_legacy: bool,
    ) -> None:
        self._head = (completion_id, created, model)
        self._has_usage_chunk = has_usage_chunk
        self._has_logprobs = has_logprobs
        self._is_legacy = is_legacy
        self._chunks = [
            ChatChunks(*self._head, has_usage_chunk=has_usage_chunk, is_legacy=is_legacy, index=index)
            for index in range(num_choices)
        ]

    def whole(self, outcomes: Sequence[Outcome]) -> bytes:
        (outcome,) = outcomes
        return _encode(
            openai.chat_completion(
                *self._head,
                outcome.choices,
                outcome.finished.usage,
                has_logprobs=self._has_logprobs,
                is_legacy=self._is_legacy,
            )
        )

    def frames(self, _task: int, event: Event, _next_event: Event | None) -> bytes:
        if isinstance(event, Token) and event.is_reasoning:
            return _frame(self._chunks[event.choice].reasoning(event.text))
        if isinstance(event, Token):
            return _frame(self._chunks[event.choice].text(event.text, event.logprobs))
        if isinstance(event, Started):
            return b"".join(_frame(chunks.text("")) for chunks in self._chunks)
        if isinstance(event, ToolCallDelta):
            return _frame(self._chunks[event.choice].tool_call(event))
        if isinstance(event, ChoiceEnded):
            return _frame(self._chunks[event.choice].end(event.reason))
        if isinstance(event, Finished) and len(self._chunks) == 1:
            return _frame(self._chunks[0].end(event.reason))
        return b""

    def end(self, usage: Usage) -> bytes:
        return (_frame(self._chunks[0].usage(usage)) if self._has_usage_chunk else b"") + DONE


class CompletionShape:
    """`text_completion`, and its chunks: the last text of a choice also says why it ended.

    `echoes` has for each prompt the text that its choices begin with.
    """

    def __init__(
        self,
        completion_id: str,
        created: int,
        model: str,
        asked: completions.Completions,
        echoes: Sequence[str],
        *,
        has_usage_chunk: bool,
    ) -> None:
        self._head = (completion_id, created, model)
        self._asked = asked
        self._has_logprobs = asked.sampling.logprobs is not None
        self._echoes = echoes
        self._has_usage_chunk = has_usage_chunk
        self._chunks = CompletionChunks(*self._head, has_usage_chunk=has_usage_chunk)
        self._offsets = [0] * (len(asked.prompts) * asked.num_tries)
        self._told_ends: set[int] = set()

    def whole(self, outcomes: Sequence[Outcome]) -> bytes:
        usage = total_usage([outcome.finished.usage for outcome in outcomes])
        tries = [outcome.choices for outcome in outcomes]
        return _encode(completions.whole(*self._head, self._asked, self._echoes, tries, usage))

    def frames(self, task: int, event: Event, next_event: Event | None) -> bytes:
        first = task * self._asked.num_tries  # of the task's choices
        if isinstance(event, Started):
            echo = self._echoes[task]
            each = range(first, first + self._asked.num_tries)
            return b"".join(_frame(self._chunks.text(choice, echo)) for choice in each) if echo else b""
        if isinstance(event, Token):
            return self._text(first + event.choice, event, _end_of(event.choice, next_event))
        if isinstance(event, ChoiceEnded):
            return self._end(first + event.choice, event.reason)
        if isinstance(event, Finished) and self._asked.num_tries == 1:
            return self._end(first, event.reason)
        return b""

    def _end(self, choice: int, reason: FinishReason) -> bytes:
        return b"" if choice in self._told_ends else _frame(self._chunks.choice(choice, "", reason, None, 0))

    def _text(self, choice: int, token: Token, reason: FinishReason | None) -> bytes:
        logprobs = token.logprobs if self._has_logprobs else None
        if not logprobs and reason is None:
            return _frame(self._chunks.text(choice, token.text))
        if reason is not None:
            self._told_ends.add(choice)
        offset = self._offsets[choice]
        self._offsets[choice] += len(token.text)
        return _frame(self._chunks.choice(choice, token.text, reason, logprobs, offset))

    def end(self, usage: Usage) -> bytes:
        return (_frame(self._chunks.usage(usage)) if self._has_usage_chunk else b"") + DONE


def _end_of(choice: int, event: Event | None) -> FinishReason | None:
    """Why a choice ended, if `event` says that it did."""
    if isinstance(event, ChoiceEnded):
        return event.reason if event.choice == choice else None
    return event.reason if isinstance(event, Finished) else None


class EmbeddingShape:
    """OpenAI's list of embeddings, which does not stream."""

    def __init__(self, model: str, encoding: Literal["float", "base64"]) -> None:
        self._model = model
        self._encoding = encoding

    def whole(self, outcomes: Sequence[Outcome]) -> bytes:
        (outcome,) = outcomes
        assert outcome.embeddings is not None
        usage = outcome.finished.usage
        return _encode(openai.embeddings_object(self._model, outcome.embeddings, usage, self._encoding))

    def frames(self, _task: int, _event: Event, _next_event: Event | None) -> bytes:
        raise AssertionError("this task does not stream")

    def end(self, _usage: Usage) -> bytes:
        raise AssertionError("this task does not stream")


def _frame(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n" if document else b""
