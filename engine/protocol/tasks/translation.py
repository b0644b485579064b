"""The task translation: a text in another language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from engine.protocol.fields import BadInput, text
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer, encode
from engine.protocol.tasks.task import CHARACTERS_PER_TOKEN, ModelLimits, Task

MAX_TEXT_CHARACTERS = 100_000
_MAX_LANGUAGE_CHARACTERS = 32


class Translation(Task, frozen=True, tag="translation", omit_defaults=True, kw_only=True):
    """A text to translate. Languages are codes such as `en` or `eng_Latn`, or English names. An empty `source_lang` is
    English, or the only source language of the model."""

    slug: ClassVar[str] = "translation"
    native_schemas: ClassVar[tuple[str, ...]] = ("translation",)
    text_field: ClassVar[str] = "text"

    text: str
    target_lang: str
    source_lang: str = ""

    @property
    def max_completion_tokens(self) -> int:
        return 2 * len(self.text) // CHARACTERS_PER_TOKEN + 1

    @property
    def num_estimated_tokens(self) -> int:
        return len(self.text) // CHARACTERS_PER_TOKEN + 1 + self.max_completion_tokens

    @classmethod
    def read_native(cls, body: Mapping[str, Any], _model: ModelLimits) -> Self:
        source = text(body["text"], "/text", max_characters=MAX_TEXT_CHARACTERS)
        if not source.strip():
            raise BadInput("'/text' must not be empty")
        languages = {
            name: text(body.get(name) or "", f"/{name}", max_characters=_MAX_LANGUAGE_CHARACTERS)
            for name in ("source_lang", "target_lang")
        }
        return cls(text=source, **languages)

    def native_renderer(self) -> Renderer:
        return NativeTranslation()


class NativeTranslation(Renderer):
    """The native response: `{translated_text}`."""

    def whole(self, outcome: Outcome) -> bytes:
        assert outcome.result is not None
        return encode({"translated_text": outcome.result.fields["text"]})
