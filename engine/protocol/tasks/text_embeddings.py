"""The task text embeddings: one vector for each text, or the similarity of contexts to a query."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from msgspec import Struct

from engine.protocol.events import Result
from engine.protocol.fields import BadInput, text, texts
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.contexts import MAX_CONTEXT_CHARACTERS, RankedContexts, contexts
from engine.protocol.tasks.task import CHARACTERS_PER_TOKEN, ModelLimits, Task

MAX_TEXTS = 3000


class TextEmbeddings(Task, frozen=True, tag="text-embeddings", omit_defaults=True, kw_only=True):
    """Texts to embed. `pooling` None is the model's own.

    With a `query`, the result is the cosine similarity of each text to the query instead of vectors.
    """

    slug: ClassVar[str] = "text-embeddings"
    native_schemas: ClassVar[tuple[str, ...]] = ("text_embeddings", "text_embeddings_multi")
    text_field: ClassVar[str] = "text"

    texts: tuple[str, ...]
    pooling: Literal["mean", "cls"] | None = None
    query: str = ""

    @property
    def opening_text(self) -> str:
        return self.texts[0]

    @property
    def num_estimated_tokens(self) -> int:
        return (sum(map(len, self.texts)) + len(self.query)) // CHARACTERS_PER_TOKEN

    @classmethod
    def read_native(cls, body: Mapping[str, Any], _model: ModelLimits) -> Self:
        pooling = body.get("pooling")
        if pooling not in (None, "mean", "cls"):
            raise BadInput("'/pooling' must be one of mean, cls")
        if "contexts" in body:
            query = text(body.get("query") or "", "/query", max_characters=MAX_CONTEXT_CHARACTERS)
            return cls(texts=contexts(body, "contexts"), pooling=pooling, query=query)
        return cls(texts=texts(body, "text", maximum=MAX_TEXTS), pooling=pooling)

    def native_renderer(self) -> Renderer:
        return RankedContexts() if self.query else NativeEmbeddings()


class Embeddings(Struct, frozen=True):
    """The output: `data` holds vectors as little-endian float32, row after row; `shape` is (texts, dimensions)."""

    shape: tuple[int, int]
    data: bytes
    pooling: str = "mean"

    def to_result(self) -> Result:
        return Result({"shape": self.shape, "pooling": self.pooling}, self.data)

    @classmethod
    def of(cls, outcome: Outcome) -> Self:
        """Return the embeddings of a successful call."""
        assert outcome.result is not None
        num_texts, dimensions = outcome.result.fields["shape"]
        return cls((num_texts, dimensions), outcome.result.data, outcome.result.fields["pooling"])

    def rows(self) -> list[list[float]]:
        """Return one list of floats for each text."""
        num_texts, dimensions = self.shape
        values = array("f")
        values.frombytes(self.data)
        if sys.byteorder == "big":
            values.byteswap()
        flat = values.tolist()
        return [flat[row * dimensions : (row + 1) * dimensions] for row in range(num_texts)]


class NativeEmbeddings(Renderer):
    """The native response: `{shape, data, pooling}`."""

    def whole(self, outcome: Outcome) -> bytes:
        embeddings = Embeddings.of(outcome)
        return encode({"shape": embeddings.shape, "data": embeddings.rows(), "pooling": embeddings.pooling})
