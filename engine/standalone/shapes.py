"""How an answer looks: chat and text completions, whole and as event-stream frames, for one prompt or many. Pure.

A choice is one call's answer. One chunk for each event, so that what a client times is what the engine did; usage
counts each prompt once and every token that was generated for it. Knows no transport.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from engine.protocol import completions, openai
from engine.protocol.completions import CompletionChunks
from engine.protocol.events import Event, Finished, Started, Token, ToolCallDelta, Usage
from engine.protocol.openai import ChatChunks
from engine.protocol.outcome import Outcome

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class Shape(Protocol):
    """`frames` are those of one choice's event, `next_event` being the one that followed at once; `end` closes a
    stream that went well."""

    def whole(self, outcomes: Sequence[Outcome]) -> bytes: ...
    def frames(self, choice: int, event: Event, next_event: Event | None) -> bytes: ...
    def end(self, usage: Usage) -> bytes: ...


def total_usage(usages: Sequence[Usage], num_tries: int) -> Usage:
    """Of calls in the order of their prompts, `num_tries` of them for each."""
    firsts = usages[::num_tries]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in firsts),
        cached_tokens=sum(usage.cached_tokens for usage in firsts),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
    )


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
        self._num_choices = num_choices
        self._has_usage_chunk = has_usage_chunk
        self._has_logprobs = has_logprobs
        self._is_legacy = is_legacy
        self._chunks = [
            ChatChunks(*self._head, has_usage_chunk=has_usage_chunk, is_legacy=is_legacy, index=index)
            for index in range(num_choices)
        ]

    def whole(self, outcomes: Sequence[Outcome]) -> bytes:
        usage = total_usage([outcome.finished.usage for outcome in outcomes], self._num_choices)
        completions = [self._completion(outcome, usage) for outcome in outcomes]
        choices = [completion["choices"][0] | {"index": index} for index, completion in enumerate(completions)]
        return _encode(completions[0] | {"choices": choices})

    def _completion(self, outcome: Outcome, usage: Usage) -> dict[str, Any]:
        return openai.chat_completion(
            *self._head,
            outcome.text,
            outcome.finished.reason,
            usage,
            outcome.logprobs if self._has_logprobs else None,
            outcome.tool_calls,
            is_legacy=self._is_legacy,
        )

    def frames(self, choice: int, event: Event, _next_event: Event | None) -> bytes:
        chunks = self._chunks[choice]
        if isinstance(event, Token):
            return _frame(chunks.text(event.text, event.logprobs))
        if isinstance(event, Started):
            return _frame(chunks.text(""))
        if isinstance(event, ToolCallDelta):
            return _frame(chunks.tool_call(event))
        if isinstance(event, Finished):
            return _frame(chunks.end(event.reason))
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
        tries = self._asked.num_tries
        usage = total_usage([outcome.finished.usage for outcome in outcomes], tries)
        choices: list[dict[str, Any]] = []
        for prompt, echo in enumerate(self._echoes):
            for outcome in self._best(outcomes[prompt * tries : (prompt + 1) * tries]):
                logprobs = outcome.logprobs if self._has_logprobs else None
                reason = outcome.finished.reason
                choices.append(completions.choice_object(len(choices), echo + outcome.text, reason, logprobs))
        return _encode(completions.completion_object(*self._head, choices, usage))

    def _best(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Those whose tokens were likeliest on average, the best first; all of them in their order if all are asked."""
        if self._asked.num_tries == self._asked.num_choices:
            return outcomes
        return sorted(outcomes, key=_mean_logprob, reverse=True)[: self._asked.num_choices]

    def frames(self, choice: int, event: Event, next_event: Event | None) -> bytes:
        if isinstance(event, Started):
            echo = self._echoes[choice // self._asked.num_tries]
            return _frame(self._chunks.text(choice, echo)) if echo else b""
        if isinstance(event, Token):
            finished = next_event if isinstance(next_event, Finished) else None
            return self._text(choice, event, finished)
        if isinstance(event, Finished) and choice not in self._told_ends:
            return _frame(self._chunks.choice(choice, "", event.reason, None, 0))
        return b""

    def _text(self, choice: int, token: Token, finished: Finished | None) -> bytes:
        logprobs = token.logprobs if self._has_logprobs else None
        if not logprobs and finished is None:
            return _frame(self._chunks.text(choice, token.text))
        if finished is not None:
            self._told_ends.add(choice)
        offset = self._offsets[choice]
        self._offsets[choice] += sum(len(entry.text) for entry in token.logprobs)
        reason = finished.reason if finished else None
        return _frame(self._chunks.choice(choice, token.text, reason, logprobs, offset))

    def end(self, usage: Usage) -> bytes:
        return (_frame(self._chunks.usage(usage)) if self._has_usage_chunk else b"") + DONE


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

    def frames(self, _choice: int, _event: Event, _next_event: Event | None) -> bytes:
        raise AssertionError("this task does not stream")

    def end(self, _usage: Usage) -> bytes:
        raise AssertionError("this task does not stream")


def _mean_logprob(outcome: Outcome) -> float:
    return sum(entry.logprob for entry in outcome.logprobs) / max(1, len(outcome.logprobs))


def _frame(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n" if document else b""
