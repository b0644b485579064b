"""Text embeddings: tokenize texts; the worker (`one_pass/text_embeddings.py`) computes one vector for each.

With a query, the result is the cosine similarity of the texts to the query instead of vectors. A text longer than
`max_tokens` is truncated; usage counts the computed tokens.
"""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from engine.protocol.events import Result
from engine.protocol.tasks.text_embeddings import Embeddings, TextEmbeddings
from engine.tasks.loading import LoadRequest
from engine.tasks.one_pass.host import OnePassHost
from engine.tasks.one_pass.task_model import OnePassModel
from engine.tasks.sentence_tokenizer import LONG_TEXT_CHARACTERS, SentenceTokenizer
from engine.tasks.work import ModelDescription, Refused


class TokenRow(Struct, frozen=True, array_like=True):
    """One text for the worker: token ids as int32, and True if its vector is that of the first token."""

    token_ids: bytes
    is_cls: bool

    @property
    def cost(self) -> int:
        return len(self.token_ids) // 4


class EmbeddingModelInfo(Struct, frozen=True):
    """The model's own pooling, the number of token ids that it knows, and the poolings that a request may choose."""

    pooling: str
    vocab_size: int
    poolings: tuple[str, ...] = ("mean", "cls")


async def load(request: LoadRequest) -> TextEmbedder:
    """Load an embedding model. Raises ModelLoadError."""
    tokenizer = await asyncio.to_thread(SentenceTokenizer, request.folder)
    host = await OnePassHost.start(request, "engine.tasks.one_pass.text_embeddings:load")
    return TextEmbedder(host, tokenizer)


class TextEmbedder(OnePassModel[TextEmbeddings]):
    """One embedding model of this node: its tokenizer and its worker."""

    def __init__(self, host: OnePassHost, tokenizer: SentenceTokenizer) -> None:
        super().__init__(host)
        self._tokenizer = tokenizer
        self._info = msgspec.convert(host.info, EmbeddingModelInfo)

    def describe(self) -> ModelDescription:
        return ModelDescription(self._tokenizer.max_tokens, "embeddings", {"input": "a warm place"})

    async def read(self, task: TextEmbeddings) -> list[TokenRow]:
        """Tokenize the texts. Raises Refused."""
        if not task.texts:
            raise Refused("invalid_input", "there is no text to embed")
        if self._pooling(task) not in self._info.poolings:
            raise Refused("invalid_input", f"'/pooling' must be one of {', '.join(self._info.poolings)} for this model")
        encode = self._tokenizer.encode
        texts = (task.query, *task.texts) if task.query else task.texts
        is_short = sum(map(len, texts)) < LONG_TEXT_CHARACTERS
        rows = encode(texts) if is_short else await asyncio.to_thread(encode, texts)
        if not all(row and max(row) < self._info.vocab_size for row in rows):  # an invalid row would crash the worker
            raise Refused("invalid_input", "a text has no tokens, or tokens that this model does not know")
        is_cls = self._pooling(task) == "cls"
        return [TokenRow(array("i", row).tobytes(), is_cls) for row in rows]

    def render(self, task: TextEmbeddings, outputs: list[Any]) -> Result:
        """Return the vectors, or the similarity of each to the first. Each output is one as little-endian float32."""
        if task.query:
            vectors = np.frombuffer(b"".join(outputs), dtype="<f4").reshape(len(outputs), -1)
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12)
            return Result({"scores": (vectors[1:] @ vectors[:1].T).tolist()})
        shape = (len(outputs), len(outputs[0]) // 4)
        return Embeddings(shape, b"".join(outputs), self._pooling(task)).to_result()

    def _pooling(self, task: TextEmbeddings) -> str:
        return task.pooling or self._info.pooling
