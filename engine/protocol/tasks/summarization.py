"""The task summarization: a shorter text with the main points of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from engine.protocol.fields import BadInput, integer, text
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.task import CHARACTERS_PER_TOKEN, ModelLimits, Task

MAX_TEXT_CHARACTERS = 400_000
MIN_LENGTH, MAX_LENGTH = 8, 4096
_ESTIMATED_LENGTH = 256


class Summarization(Task, frozen=True, tag="summarization", omit_defaults=True, kw_only=True):
    """A text to summarize. `max_length` is the maximum length of the summary in tokens; 0 is the model's own."""

    slug: ClassVar[str] = "summarization"
    native_schemas: ClassVar[tuple[str, ...]] = ("summarization",)
    text_field: ClassVar[str] = "input_text"

    text: str
    max_length: int = 0

    @property
    def max_completion_tokens(self) -> int:
        return self.max_length or _ESTIMATED_LENGTH

    @property
    def num_estimated_tokens(self) -> int:
        return len(self.text) // CHARACTERS_PER_TOKEN + 1 + self.max_completion_tokens

    @classmethod
    def read_native(cls, body: Mapping[str, Any], _model: ModelLimits) -> Self:
        source = text(body["input_text"], "/input_text", max_characters=MAX_TEXT_CHARACTERS)
        if not source.strip():
            raise BadInput("'/input_text' must not be empty")
        return cls(text=source, max_length=integer(body, "max_length", 0, minimum=MIN_LENGTH, maximum=MAX_LENGTH))

    def native_renderer(self) -> Renderer:
        return NativeSummary()


class NativeSummary(Renderer):
    """The native response: `{summary}`."""

    def whole(self, outcome: Outcome) -> bytes:
        assert outcome.result is not None
        return encode({"summary": outcome.result.fields["text"]})
