"""A model's tokenizer as llguidance wants it: which bytes each id spells, which ids are control tokens or end tokens.

Read from the files that text is encoded with, of any kind (`engine/text/files.py`). Control tokens are those of
`engine/text/control_tokens.py`. They leave the vocabulary under their own names, as they do where text is
encoded: the library would otherwise write a forced text that spells one with the token itself. Only a grammar that
names one by its id allows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.structured.closing_bound import growth
from engine.text.control_tokens import remove_control_tokens
from engine.text.files import TokenizerUnusable, read_definition

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_SMALL_VOCABULARY = 16_384  # up to there, sorting tokens beforehand costs each grammar more than its masks gain
_PLAIN = re.compile(rb"[ !#-\[\]-~]+")
_SPECIAL_TO_LIBRARY = re.compile(r"<.*>", re.DOTALL)  # whatever the file says of it


class Tail:
    """What is known of the place after a token: whether a string may have begun or ended in it, and if not, whether it
    may have led into a number or a word."""

    UNKNOWN = 0  # quotes and escapes, or no text
    QUOTE = 1  # one quote, the last byte
    WORD = 2  # no quote; a letter or a digit
    SIGN = 3  # no quote; anything else
    COMMA = 4  # a comma alone
    # one quote, and brackets, colons and commas behind it: if it ended a string, the text stands in none
    BEHIND = 5
    NEXT = 6  # the same with a colon or a comma as the last byte


@dataclass(frozen=True, eq=False)
class TokenView:
    """One model's vocabulary as matchers see it. `byte_ids` [256] is the token that spells exactly that byte, -1 where
    the vocabulary has none."""

    tokenizer: LLTokenizer
    num_tokens: int  # bits of a mask
    byte_ids: NDArray[np.intp]
    eos_token_ids: tuple[int, ...]
    control_ids: Mapping[str, int]  # by what the model's own files call them
    # [num_tokens], 0 for a token that spells letters, digits and spaces alone; else itself and what it may add, in a
    # JSON text, to the tokens that closing needs
    costs: bytes
    # [num_tokens], 1 for a token that any JSON string may go on with: printable ASCII, no quote and no backslash
    plain: bytes
    # [num_tokens], how a token's last byte leaves a JSON text in which strings may be any: see `Tail`
    tails: bytes

    def spell(self, text: str) -> list[int]:
        """A token for each byte of an ASCII text; [] where the vocabulary lacks one."""
        ids: list[int] = self.byte_ids[[*text.encode()]].tolist()
        return ids if min(ids) >= 0 else []

    @cached_property
    def ids_of_bytes(self) -> list[int]:
        """`byte_ids`"""
        ids: list[int] = self.byte_ids.tolist()
        return ids

    @cached_property
    def _signs(self) -> tuple[list[int], list[int], list[int]] | None:
        """Tokens that may all come where a string goes on, or a number, and of which one ends a number; None where the
        vocabulary lacks one."""
        string, number, ends = (self.byte_ids[[*text]].tolist() for text in (b'q"xz', b"059", b",}]"))
        return (string, number, ends) if min(string + number + ends) >= 0 else None

    def can_go_on(self, matcher: LLMatcher) -> bool:
        """Whether the text stands in a string of any letters, or in a number, that could end as well. A key or a text
        of the caller's own allows but few letters."""
        if self._signs is None:
            return False
        (first, *string), number, ends = self._signs
        may = matcher.validate_tokens
        if may([first]):
            return all(may([token_id]) for token_id in string)
        return all(may([token_id]) for token_id in number) and any(may([token_id]) for token_id in ends)


def read_token_view(model_dir: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> TokenView:
    """`vocab_size` is the model's own: where it goes beyond the tokenizer's, the ids between spell nothing and are
    never allowed. Takes a second for the largest vocabularies. Raises OSError, ValueError, TypeError or KeyError if the
    files are not such as the library reads."""
    from llguidance import LLTokenizer

    try:
        definition, _ = read_definition(model_dir)
    except TokenizerUnusable as error:
        raise ValueError(str(error)) from error
    control_ids = {control.text: control.token_id for control in remove_control_tokens(definition)}
    _mark_special(definition, set(control_ids.values()))
    largest_added = max((token["id"] for token in definition.get("added_tokens", [])), default=-1)
    num_tokens = max(vocab_size, largest_added + 1, _largest_id(definition["model"]["vocab"]) + 1)
    eos = [token_id for token_id in eos_token_ids if token_id < num_tokens]
    tokenizer = LLTokenizer(
        msgspec.json.encode(definition).decode(),
        n_vocab=num_tokens,
        eos_token=eos or None,
        slices=None if num_tokens > _SMALL_VOCABULARY else [],
    )
    texts: list[bytes] = [tokenizer.decode_bytes([token_id]) for token_id in range(num_tokens)]
    is_text = [not tokenizer.is_special_token(token_id) for token_id in range(num_tokens)]
    return TokenView(
        tokenizer=tokenizer,
        num_tokens=num_tokens,
        byte_ids=_byte_ids(tokenizer),
        eos_token_ids=tuple(tokenizer.eos_tokens),
        control_ids=control_ids,
        costs=bytes(map(_cost, texts, is_text)),
        plain=bytes(map(_is_plain, texts, is_text)),
        tails=bytes(map(_tail, texts, is_text)),
    )


def _cost(text: bytes, is_text: bool) -> int:
    return 0 if is_text and text.replace(b" ", b"").isalnum() else min(1 + growth(text), 255)


def _is_plain(text: bytes, is_text: bool) -> bool:
    return is_text and _PLAIN.fullmatch(text) is not None


def _tail(text: bytes, is_text: bool) -> int:
    if not is_text or not text or b"\\" in text:
        return Tail.UNKNOWN
    if b'"' in text:
        behind = text[text.index(b'"') + 1 :]
        if behind.strip(b"}],:"):
            return Tail.UNKNOWN
        return (Tail.NEXT if behind[-1:] in b",:" else Tail.BEHIND) if behind else Tail.QUOTE
    if text[-1:].isalnum():
        return Tail.WORD
    return Tail.COMMA if text == b"," else Tail.SIGN


def _byte_ids(tokenizer: LLTokenizer) -> NDArray[np.intp]:
    found = np.full(256, -1, dtype=np.intp)
    for byte in range(256):
        ids = tokenizer.greedy_tokenize(chr(byte)) if byte < 128 else tokenizer.tokenize_bytes(bytes([byte]))
        if len(ids) == 1 and tokenizer.decode_bytes(ids) == bytes([byte]):
            found[byte] = ids[0]
    return found


def _mark_special(definition: dict[str, Any], control_ids: set[int]) -> None:
    """Have the library take the controls for what they are, and write what it takes for special in pieces."""
    definition["truncation"] = definition["padding"] = definition["post_processor"] = None
    for token in definition["added_tokens"]:
        if token["id"] in control_ids:
            token["special"] = True
    definition["added_tokens"] = [
        token
        for token in definition["added_tokens"]
        if token["id"] in control_ids or not _SPECIAL_TO_LIBRARY.fullmatch(token["content"])
    ]


def _largest_id(vocab: dict[str, int] | list[Any]) -> int:
    return len(vocab) - 1 if isinstance(vocab, list) else max(vocab.values(), default=-1)
