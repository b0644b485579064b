"""Translation: split a text into lines and sentences; the worker (`one_pass/translation.py`) translates the parts.

A model reports the codes of its languages. Callers name languages by these codes, by ISO codes or by English names.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from engine.protocol.events import Result, Usage
from engine.protocol.tasks.translation import Translation
from engine.tasks.languages import find_code
from engine.tasks.loading import LoadRequest
from engine.tasks.one_pass.host import OnePassHost
from engine.tasks.one_pass.task_model import OnePassModel
from engine.tasks.text_parts import PartOutput, TextPart, measured, split_text
from engine.tasks.work import ModelDescription, Refused

_MAX_BATCH_COST = 2048
_DEFAULT_SOURCE = "en"


class TranslationModelInfo(Struct, frozen=True):
    """The codes of the languages that the model reads and writes, and the tokens of a part."""

    source_langs: tuple[str, ...]
    target_langs: tuple[str, ...]
    max_tokens: int


async def load(request: LoadRequest) -> Translator:
    """Load a translation model. Raises ModelLoadError."""
    entry = "engine.tasks.one_pass.translation:load"
    return Translator(await OnePassHost.start(request, entry, _MAX_BATCH_COST))


class Translator(OnePassModel[Translation]):
    """One translation model of this node."""

    def __init__(self, host: OnePassHost) -> None:
        super().__init__(host)
        self._info = msgspec.convert(host.info, TranslationModelInfo)

    def describe(self) -> ModelDescription:
        body = {"text": "a warm place", "target_lang": self._info.target_langs[0]}
        return ModelDescription(self._info.max_tokens, "run", body, ", ".join(self._info.target_langs[:20]))

    async def read(self, task: Translation) -> list[TextPart]:
        """Return the parts of the text. Raises Refused."""
        sources = self._info.source_langs
        source = self._code("source_lang", task.source_lang, sources) if task.source_lang else self._default_source()
        target = self._code("target_lang", task.target_lang, self._info.target_langs)
        # A character is hardly ever more than one token; the worker splits a part that is too long nevertheless.
        return [TextPart(piece.text, source, target) for piece in split_text(task.text, self._info.max_tokens)]

    def _default_source(self) -> str:
        sources = self._info.source_langs
        return sources[0] if len(sources) == 1 else self._code("source_lang", _DEFAULT_SOURCE, sources)

    def _code(self, field: str, language: str, codes: tuple[str, ...]) -> str:
        code = find_code(language, codes)
        if code is None:
            raise Refused("invalid_input", f"'/{field}' must be one of {', '.join(codes)}")
        return code

    def render(self, task: Translation, outputs: list[Any]) -> Result:
        """Return the translation, with the white space of the text between its parts."""
        pieces = split_text(task.text, self._info.max_tokens)
        parts = [PartOutput(*output).text + piece.space for piece, output in zip(pieces, outputs, strict=True)]
        return Result({"text": "".join(parts)})

    def measure(self, _task: Translation, outputs: list[Any]) -> Usage:
        return measured(outputs)
