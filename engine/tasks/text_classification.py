"""Text classification: tokenize texts, or pairs of a query and a context. The worker
(`one_pass/text_classification.py`) computes the scores of the labels.

A text longer than the model's limit is truncated; usage counts the computed tokens. A model without a tokenizer reads
words instead; its usage counts CHARACTERS_PER_TOKEN as one token.
"""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import msgspec
from msgspec import Struct

from engine.protocol.events import Result
from engine.protocol.tasks.task import CHARACTERS_PER_TOKEN
from engine.protocol.tasks.text_classification import Classification, TextClassification
from engine.tasks.loading import LoadRequest
from engine.tasks.one_pass.host import OnePassHost
from engine.tasks.one_pass.task_model import OnePassModel
from engine.tasks.sentence_tokenizer import LONG_TEXT_CHARACTERS, SentenceTokenizer
from engine.tasks.work import ModelDescription, Refused

_WORKER = "engine.tasks.one_pass.text_classification:load"


class ClassifiedRow(Struct, frozen=True, array_like=True):
    """One text, or one pair of texts, for the worker: token ids as int32, and the number of the text (0 or 1) that each
    token belongs to, as bytes."""

    token_ids: bytes
    type_ids: bytes

    @property
    def cost(self) -> int:
        return len(self.type_ids)


class WholeText(Struct, frozen=True, array_like=True):
    """One text for a worker whose model reads words."""

    text: str

    @property
    def cost(self) -> int:
        return -(-len(self.text) // CHARACTERS_PER_TOKEN)


class ClassifierInfo(Struct, frozen=True):
    """The labels of the model in the order of its outputs, and the number of token ids that the model knows."""

    labels: tuple[str, ...]
    vocab_size: int


async def load(request: LoadRequest) -> TextClassifier | WordClassifier:
    """Load a text classification model. Raises ModelLoadError."""
    if (request.folder / "words.json").is_file():
        return WordClassifier(await OnePassHost.start(request, _WORKER), request.context_window)
    tokenizer = await asyncio.to_thread(SentenceTokenizer, request.folder)
    host = await OnePassHost.start(request, _WORKER)
    return TextClassifier(host, tokenizer)


class TextClassifier(OnePassModel[TextClassification]):
    """One text classification model of this node: its tokenizer and its worker."""

    def __init__(self, host: OnePassHost, tokenizer: SentenceTokenizer) -> None:
        super().__init__(host)
        self._tokenizer = tokenizer
        self._info = msgspec.convert(host.info, ClassifierInfo)

    def describe(self) -> ModelDescription:
        details = ", ".join(self._info.labels[:20])
        if len(self._info.labels) == 1:
            body = {"query": "a place to eat", "documents": ["a warm restaurant", "a parking lot"]}
            return ModelDescription(self._tokenizer.max_tokens, "rerank", body, details)
        return ModelDescription(self._tokenizer.max_tokens, "moderations", {"input": "a warm place"}, details)

    async def read(self, task: TextClassification) -> list[ClassifiedRow]:
        """Tokenize the texts. Raises Refused."""
        if not task.texts:
            raise Refused("invalid_input", "there is no text to classify")
        if task.query and len(self._info.labels) != 1:
            message = f"this model has {len(self._info.labels)} labels; only a model with one output scores contexts"
            raise Refused("invalid_input", message)
        num_characters = sum(map(len, task.texts)) + len(task.query) * len(task.texts)
        rows = self._rows(task) if num_characters < LONG_TEXT_CHARACTERS else await asyncio.to_thread(self._rows, task)
        if not all(token_ids and max(token_ids) < self._info.vocab_size for token_ids, _ in rows):
            # An invalid row would crash the worker.
            raise Refused("invalid_input", "a text has no tokens, or tokens that this model does not know")
        return [ClassifiedRow(array("i", token_ids).tobytes(), bytes(type_ids)) for token_ids, type_ids in rows]

    def _rows(self, task: TextClassification) -> list[tuple[list[int], list[int]]]:
        """Return token ids and type ids of each text."""
        if task.query:
            pairs = self._tokenizer.encode_pairs(task.query, task.texts)
            return [(encoding.ids, encoding.type_ids) for encoding in pairs]
        return [(token_ids, [0] * len(token_ids)) for token_ids in self._tokenizer.encode(task.texts)]

    def render(self, task: TextClassification, outputs: list[Any]) -> Result:
        """Return the scores; each output has those of one text, as little-endian float32."""
        labels = () if task.query else self._info.labels
        return Classification(labels, tuple(tuple(memoryview(output).cast("f")) for output in outputs)).to_result()


class WordClassifier(OnePassModel[TextClassification]):
    """One model of this node that reads words, of at most `max_tokens` times CHARACTERS_PER_TOKEN characters."""

    def __init__(self, host: OnePassHost, max_tokens: int) -> None:
        super().__init__(host)
        self._info = msgspec.convert(host.info, ClassifierInfo)
        self._max_tokens = max_tokens

    def describe(self) -> ModelDescription:
        details = ", ".join(self._info.labels[:20])
        return ModelDescription(self._max_tokens, "moderations", {"input": "a warm place"}, details)

    async def read(self, task: TextClassification) -> list[WholeText]:
        """Return the texts. Raises Refused."""
        if task.query:
            raise Refused("invalid_input", "this model has labels; only a model with one output scores contexts")
        if not all(task.texts):
            raise Refused("invalid_input", "there is no text to classify")
        return [WholeText(text[: self._max_tokens * CHARACTERS_PER_TOKEN]) for text in task.texts]

    def render(self, task: TextClassification, outputs: list[Any]) -> Result:  # noqa: ARG002
        """Return the scores; each output has those of one text, as little-endian float32."""
        scores = tuple(tuple(memoryview(output).cast("f")) for output in outputs)
        return Classification(self._info.labels, scores).to_result()
