"""Parts of a text for models that rewrite texts (translation, summarization): split a text, and measure its parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import Struct

from engine.protocol.events import Usage

_CHARACTERS_PER_COST = 3
_SENTENCE = re.compile(r".*?(?:[.!?…](?=\s)|[。！？]|$)\s*", re.DOTALL)


class TextPart(Struct, frozen=True, array_like=True):
    """A text for the worker, with the model's codes of its languages (or "") and the maximum length of the output in
    tokens (0: the model's own)."""

    text: str
    source_lang: str = ""
    target_lang: str = ""
    max_length: int = 0

    @property
    def cost(self) -> int:
        return len(self.text) // _CHARACTERS_PER_COST + 1


class PartOutput(NamedTuple):
    """The output of one part, with the numbers of tokens that the model read and wrote."""

    text: str
    num_input_tokens: int
    num_output_tokens: int


class Piece(NamedTuple):
    """A part of a text without the white space around it, and the white space after it."""

    text: str
    space: str


def split_text(text: str, max_characters: int) -> list[Piece]:
    """Return the pieces of a text, at least one unless the text is blank: its lines, and the sentences of a line that
    is longer than `max_characters`, as many sentences as fit in each piece."""
    pieces: list[Piece] = []
    for line in text.strip().splitlines(keepends=True):
        for part in _parts_of(line, max_characters):
            stripped = part.strip()
            if stripped:
                pieces.append(Piece(stripped, part[len(part.rstrip()) :]))
            elif pieces:
                pieces[-1] = Piece(pieces[-1].text, pieces[-1].space + part)
    return pieces


def _parts_of(line: str, max_characters: int) -> Iterator[str]:
    part = ""
    for sentence in _SENTENCE.findall(line) if len(line) > max_characters else [line]:
        if part and len(part) + len(sentence) > max_characters:
            yield part
            part = ""
        part += sentence
        while len(part.strip()) > max_characters:
            end = part.rfind(" ", 1, max_characters) + 1 or max_characters
            yield part[:end]
            part = part[end:]
    if part:
        yield part


def measured(outputs: list[Any]) -> Usage:
    """Return the usage of a call with these outputs of its parts."""
    found = [PartOutput(*output) for output in outputs]
    return Usage(
        prompt_tokens=sum(each.num_input_tokens for each in found),
        completion_tokens=sum(each.num_output_tokens for each in found),
    )
