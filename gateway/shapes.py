"""How an answer looks: the native and the OpenAI-compatible shape of each task, whole and as event-stream frames. Pure.

A frame's constant bytes are rendered once for a stream. Knows no transport and no timing: `streaming.py` has those.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from engine.protocol import openai
from engine.protocol.events import Embeddings, Finished, TokenLogprob, Usage
from gateway import envelope

DONE = b"data: [DONE]\n\n"

_FILLER = "abcdefghijklmnopqrstuvwxyz0123456789" * 2
_FILLED_ENDS = [f',"p":"{_FILLER[:size]}"}}\n\n'.encode() for size in range(1, 65)]


@dataclass(frozen=True)
class Outcome:
    """All that a call produced."""

    text: str
    logprobs: Sequence[TokenLogprob]
    embeddings: Embeddings | None
    finished: Finished

    @property
    def usage(self) -> Usage:
        return self.finished.usage


class Shape(Protocol):
    """One way to tell an outcome. `text` and `end` give complete frames, `end` with the closing `[DONE]`."""

    def whole(self, outcome: Outcome) -> bytes: ...
    def text(self, text: str, logprobs: Sequence[TokenLogprob]) -> bytes: ...
    def end(self, finished: Finished) -> bytes: ...


class NativeText:
    """Text generation in the legacy shape: `response` and `usage`. Frames carry a filler that hides their length."""

    def whole(self, outcome: Outcome) -> bytes:
        return envelope.success({"response": outcome.text, "usage": openai.usage_object(outcome.usage)})

    def text(self, text: str, _logprobs: Sequence[TokenLogprob]) -> bytes:
        filled_end = _FILLED_ENDS[int(random.random() * len(_FILLED_ENDS))]  # noqa: S311 - blurs sizes, guards nothing
        return b'data: {"response":' + envelope.encode(text) + filled_end

    def end(self, finished: Finished) -> bytes:
        usage = envelope.encode(openai.usage_object(finished.usage))
        return b'data: {"response":"","usage":' + usage + b"}\n\n" + DONE


class ChatText:
    """Text generation as `chat.completion`: bare, or in the envelope for models whose native shape it is."""

    def __init__(
        self, request_id: str, created: int, model: str, *, has_usage_chunk: bool, has_logprobs: bool, is_bare: bool
    ) -> None:
        self._id = f"chatcmpl-{request_id}"
        self._created = created
        self._model = model
        self._has_usage_chunk = has_usage_chunk
        self._has_logprobs = has_logprobs
        self._is_bare = is_bare
        self._chunks = openai.ChatChunks(self._id, created, model, has_usage_chunk=has_usage_chunk)

    def whole(self, outcome: Outcome) -> bytes:
        completion = openai.chat_completion(
            self._id,
            self._created,
            self._model,
            outcome.text,
            outcome.finished.reason,
            outcome.usage,
            outcome.logprobs if self._has_logprobs else None,
        )
        return envelope.encode(completion) if self._is_bare else envelope.success(completion)

    def text(self, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        return b"data: " + self._chunks.text(text, logprobs) + b"\n\n"

    def end(self, finished: Finished) -> bytes:
        frames = b"data: " + self._chunks.end(finished.reason) + b"\n\n"
        if self._has_usage_chunk:
            frames += b"data: " + self._chunks.usage(finished.usage) + b"\n\n"
        return frames + DONE


class _NotStreamed:
    def text(self, _text: str, _logprobs: Sequence[TokenLogprob]) -> bytes:
        raise AssertionError("this task does not stream")

    def end(self, _finished: Finished) -> bytes:
        raise AssertionError("this task does not stream")


class NativeEmbeddings(_NotStreamed):
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


class OpenAIEmbeddings(_NotStreamed):
    """The OpenAI list of embeddings, bare."""

    def __init__(self, model: str, encoding: Literal["float", "base64"]) -> None:
        self._model = model
        self._encoding = encoding

    def whole(self, outcome: Outcome) -> bytes:
        assert outcome.embeddings is not None
        return envelope.encode(openai.embeddings_object(self._model, outcome.embeddings, outcome.usage, self._encoding))
