"""Embeddings, in Workers AI's own shape and as OpenAI's list. Pure."""

from __future__ import annotations

from typing import Any, Literal

from engine.protocol import openai
from engine.protocol.outcome import Outcome
from gateway import envelope
from gateway.shapes.shape import NotStreamed


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
