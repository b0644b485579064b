"""The task text classification: scores of labels for texts, or of contexts for a query (reranking)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import msgspec
from msgspec import Struct

from engine.protocol.events import Result
from engine.protocol.fields import integer, text
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.contexts import MAX_CONTEXTS, RankedContexts, contexts
from engine.protocol.tasks.task import CHARACTERS_PER_TOKEN, ModelLimits, Task

MAX_TEXT_CHARACTERS = 1_000_000


class TextClassification(Task, frozen=True, tag="text-classification", omit_defaults=True, kw_only=True):
    """Texts to classify. With a `query`, each text is a context to score for it, and `top_k` contexts are returned (0
    returns all)."""

    slug: ClassVar[str] = "text-classification"
    native_schemas: ClassVar[tuple[str, ...]] = ("text_classification", "reranker")
    text_field: ClassVar[str] = "text"

    texts: tuple[str, ...]
    query: str = ""
    top_k: int = 0

    @property
    def num_estimated_tokens(self) -> int:
        num_characters = sum(map(len, self.texts)) + len(self.query) * len(self.texts)
        return num_characters // CHARACTERS_PER_TOKEN

    @classmethod
    def read_native(cls, body: Mapping[str, Any], _model: ModelLimits) -> Self:
        if "query" not in body:
            return cls(texts=(text(body.get("text"), "/text", max_characters=MAX_TEXT_CHARACTERS),))
        return cls(
            texts=contexts(body, "contexts"),
            query=text(body["query"], "/query", max_characters=MAX_TEXT_CHARACTERS),
            top_k=integer(body, "top_k", 0, minimum=1, maximum=MAX_CONTEXTS),
        )

    def native_renderer(self) -> Renderer:
        return RankedContexts(self.top_k) if self.query else NativeLabels()


class Classification(Struct, frozen=True):
    """The output: the model's labels, and for each text one score from 0 to 1 for each label. The scores of contexts
    have no labels."""

    labels: tuple[str, ...]
    scores: tuple[tuple[float, ...], ...]

    def to_result(self) -> Result:
        return Result(msgspec.to_builtins(self))

    @classmethod
    def of(cls, outcome: Outcome) -> Self:
        """Return the classification of a successful call."""
        assert outcome.result is not None
        return msgspec.convert(outcome.result.fields, cls)


class NativeLabels(Renderer):
    """The native response to one text: `[{label, score}]`, in the order of the model's labels."""

    def whole(self, outcome: Outcome) -> bytes:
        found = Classification.of(outcome)
        pairs = zip(found.labels, found.scores[0], strict=True)
        return encode([{"label": label, "score": score} for label, score in pairs])
