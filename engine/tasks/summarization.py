"""Summarization: the worker (`one_pass/summarization.py`) summarizes a text.

A text that is longer than the model's context is split, and its summary consists of the summaries of its parts.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from engine.protocol.events import Result, Usage
from engine.protocol.tasks.summarization import MIN_LENGTH, Summarization
from engine.tasks.loading import LoadRequest
from engine.tasks.one_pass.host import OnePassHost
from engine.tasks.one_pass.task_model import OnePassModel
from engine.tasks.text_parts import PartOutput, TextPart, measured
from engine.tasks.work import ModelDescription

_MAX_BATCH_COST = 2048
_CHARACTERS_PER_TOKEN = 3  # few enough that a part nearly always fits into the model's context


class SummarizationModelInfo(Struct, frozen=True):
    """The number of tokens that the model reads at once."""

    max_tokens: int


async def load(request: LoadRequest) -> Summarizer:
    """Load a summarization model. Raises ModelLoadError."""
    entry = "engine.tasks.one_pass.summarization:load"
    return Summarizer(await OnePassHost.start(request, entry, _MAX_BATCH_COST))


class Summarizer(OnePassModel[Summarization]):
    """One summarization model of this node."""

    def __init__(self, host: OnePassHost) -> None:
        super().__init__(host)
        self._info = msgspec.convert(host.info, SummarizationModelInfo)

    def describe(self) -> ModelDescription:
        return ModelDescription(self._info.max_tokens, "run", {"input_text": "A long text."})

    async def read(self, task: Summarization) -> list[TextPart]:
        """Return parts of equal length that fit into the model's context."""
        max_characters = self._info.max_tokens * _CHARACTERS_PER_TOKEN
        text = task.text.strip()
        num_parts = -(-len(text) // max_characters)
        parts = _split(text, num_parts)
        max_length = max(MIN_LENGTH, task.max_length // len(parts)) if task.max_length else 0
        return [TextPart(part, max_length=max_length) for part in parts]

    def render(self, _task: Summarization, outputs: list[Any]) -> Result:
        """Return the summaries of all parts as one text."""
        return Result({"text": " ".join(PartOutput(*output).text for output in outputs)})

    def measure(self, _task: Summarization, outputs: list[Any]) -> Usage:
        return measured(outputs)


def _split(text: str, num_parts: int) -> list[str]:
    """Return about `num_parts` parts of a text, which end at white space if there is any."""
    parts = []
    length = -(-len(text) // num_parts)
    while len(text) > length:
        end = text.rfind(" ", length // 2, length) + 1 or length
        parts.append(text[:end])
        text = text[end:]
    return [*parts, text]
