"""Token ids -> text, a few at a time: never a broken character, and the same text for every split of the ids.

A token is a run of bytes (`TokenBytes` knows them); text is what those bytes spell once a character is whole. Bytes
that can never become a character turn into U+FFFD; a character that is still open when the sequence ends is dropped.
`StopFinder` holds text back while it could still become a stop string. Knows nothing of prompts or templates.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Vocabulary

_MAX_ID = (1 << 32) - 1
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class UnsupportedTokenizer(Exception):
    """The tokenizer spells its tokens in a way that this file does not know."""


class TokenBytes:
    """Which bytes each token id spells; hidden control tokens spell none.

    `texts` overrides the spelling of added tokens. `strips_leading_space` tells whether the tokenizer puts a space
    before a text of its own, which is taken off again when that text is decoded; `opens_apart`, whether the token that
    opens such a text is spelled in a way of its own (`opening`).
    """

    def __init__(self, vocabulary: Vocabulary, decoder: dict[str, Any] | None, texts: dict[int, str]) -> None:
        self._vocabulary = vocabulary
        self._texts = texts
        self._known: dict[int, bytes] = {token_id: text.encode() for token_id, text in texts.items()}
        steps = _decoder_steps(decoder)
        kinds = {step["type"] for step in steps}
        self._word_piece = next((step for step in steps if step["type"] == "WordPiece"), None)
        self._opening_signs = [
            step["replacement"]
            for step in steps
            if step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never"
        ]
        self.opens_apart = bool(self._opening_signs) or self._word_piece is not None
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_fallback = "ByteFallback" in kinds
        self._replacements = [
            (step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"
        ]
        self._replacements += [(step["replacement"], " ") for step in steps if step["type"] == "Metaspace"]
        self.strips_leading_space = any(
            step["type"] == "Strip" and step["start"] > 0 and step["content"] == " " for step in steps
        )

    def __getitem__(self, token_id: int) -> bytes:
        """The bytes of one token; none for an id outside the vocabulary."""
        spelled = self._known.get(token_id)
        if spelled is None:
            token = self._vocabulary.id_to_token(token_id) if 0 <= token_id <= _MAX_ID else None
            spelled = b"" if token is None else self._spell(token)
            self._known[token_id] = spelled
        return spelled

    def opening(self, token_id: int) -> bytes:
        """The bytes of a token that opens a text of its own."""
        token = self._vocabulary.id_to_token(token_id)
        if token is None or token_id in self._texts:
            return self[token_id]
        if self._word_piece is not None:
            return _cleaned(token, self._word_piece).encode()
        for sign in self._opening_signs:
            token = token.replace(sign, "")
        return self._spell(token)

    def _spell(self, token: str) -> bytes:
        if self._word_piece is not None:
            prefix = self._word_piece["prefix"]
            token = token[len(prefix) :] if token.startswith(prefix) else f" {token}"
            return _cleaned(token, self._word_piece).encode()
        if self._is_byte_level:
            try:
                return bytes(_BYTE_OF_CHAR[char] for char in token)
            except KeyError:
                return token.encode()
        if self._has_byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                return token.encode()
        for pattern, content in self._replacements:
            token = token.replace(pattern, content)
        return token.encode()


class Detokenizer:
    """The text of one sequence as its ids arrive. `push` costs about a microsecond a token."""

    def __init__(
        self, token_bytes: TokenBytes, *, is_own_text: bool = True, kept: Mapping[int, bytes] | None = None
    ) -> None:
        """`is_own_text`: these ids are a text of their own, not the continuation of one that a reader has seen, so
        a leading space that the tokenizer put there is taken off. `kept` spells hidden control tokens that are to
        show in this sequence."""
        self._token_bytes = token_bytes
        self._kept = kept or {}
        self._decoder = _Utf8Decoder(errors="replace")
        self._strips_next_space = is_own_text and token_bytes.strips_leading_space
        self._opens = is_own_text and token_bytes.opens_apart

    def push(self, token_ids: Iterable[int]) -> str:
        """The characters completed by these ids; may be empty."""
        spelled = self._token_bytes
        if self._opens or self._kept:
            text = self._decoder.decode(b"".join([self._spelled(token_id) for token_id in token_ids]))
        else:
            text = self._decoder.decode(b"".join([spelled[token_id] for token_id in token_ids]))
        if self._strips_next_space and text:
            self._strips_next_space = False
            text = text.removeprefix(" ")
        return text

    def _spelled(self, token_id: int) -> bytes:
        kept = self._kept.get(token_id)
        if kept is not None:
            self._opens = False
            return kept
        if self._opens and self._token_bytes[token_id]:
            self._opens = False
            return self._token_bytes.opening(token_id)
        return self._token_bytes[token_id]


class StopFinder:
    """Looks for stop strings across pieces of text; finds the one that is complete first, whatever the pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.is_stopped = False
        self.found: str | None = None

    def push(self, text: str) -> str:
        """The text that is now certain not to be part of a stop string; nothing more once one was found."""
        if self.is_stopped or not self._stops:
            return "" if self.is_stopped else text
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            self._held = ""
            _, start, self.found = min(found)
            return text[:start]
        hold_from = min(_start_of_partial(text, stop) for stop in self._stops)
        self._held = text[hold_from:]
        return text[:hold_from]

    def flush(self) -> str:
        """What was held back, when the sequence has ended without a stop string."""
        held, self._held = self._held, ""
        return held


def _start_of_partial(text: str, stop: str) -> int:
    """Where the longest end of `text` that is the beginning of `stop` starts; `len(text)` if there is none."""
    at = max(0, len(text) - len(stop) + 1)
    while (at := text.find(stop[0], at)) >= 0:
        if stop.startswith(text[at:]):
            return at
        at += 1
    return len(text)


def _decoder_steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        raise UnsupportedTokenizer("the tokenizer has no decoder")
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    for step in steps:
        is_known = step["type"] in ("ByteLevel", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece")
        if not is_known and not (step["type"] == "Replace" and "String" in step["pattern"]):
            raise UnsupportedTokenizer(f"tokenizer decoder {step['type']} is not supported")
    return steps


def _cleaned(text: str, word_piece: Mapping[str, Any]) -> str:
    """A word with the space before it taken away where none is written."""
    if word_piece.get("cleanup"):
        for untidy, tidy in _UNTIDY:
            text = text.replace(untidy, tidy)
    return text


def _byte_level_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table), inverted."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_level_alphabet()
_UNTIDY = tuple((f" {tidy}", tidy) for tidy in (".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"))
