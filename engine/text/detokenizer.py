"""Incremental detokenization: token ids to text, always in whole characters, independent of how the ids are split.

`TokenBytes` maps each token to bytes. Invalid UTF-8 becomes U+FFFD; an incomplete character at the end of the sequence
is dropped. `StopStringFinder` holds back text that could become a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Vocabulary

_MAX_ID = (1 << 32) - 1
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class UnsupportedTokenizer(Exception):
    """The tokenizer has a decoder that is not supported."""


class TokenBytes:
    """The bytes of each token. Hidden control tokens have none.

    `texts` overrides the text of added tokens.

    Attributes:
        strips_leading_space: the tokenizer puts a space before a text, to be removed when the text is decoded.
        has_first_bytes: the first token of a text has other bytes than elsewhere (`first_bytes`).
    """

    def __init__(self, vocabulary: Vocabulary, decoder: dict[str, Any] | None, texts: dict[int, str]) -> None:
        self._vocabulary = vocabulary
        self._texts = texts
        self._known: dict[int, bytes] = {token_id: text.encode() for token_id, text in texts.items()}
        steps = _decoder_steps(decoder)
        kinds = {step["type"] for step in steps}
        self._first_replacements = [
            step["replacement"]
            for step in steps
            if step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never"
        ]
        self.has_first_bytes = bool(self._first_replacements)
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
        """Return the bytes of a token; empty for an id outside the vocabulary."""
        data = self._known.get(token_id)
        if data is None:
            token = self._vocabulary.id_to_token(token_id) if 0 <= token_id <= _MAX_ID else None
            data = b"" if token is None else self._bytes_of(token)
            self._known[token_id] = data
        return data

    def first_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token that starts a text."""
        token = self._vocabulary.id_to_token(token_id)
        if token is None or token_id in self._texts:
            return self[token_id]
        for sign in self._first_replacements:
            token = token.replace(sign, "")
        return self._bytes_of(token)

    def _bytes_of(self, token: str) -> bytes:
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
    """The text of one sequence. `push` takes about a microsecond per token."""

    def __init__(
        self, token_bytes: TokenBytes, *, starts_text: bool = True, shown: Mapping[int, bytes] | None = None
    ) -> None:
        """`starts_text`: the ids start a text rather than continue one, so a leading space that the tokenizer added
        is removed. `shown` maps hidden control tokens that this sequence shows to their bytes."""
        self._token_bytes = token_bytes
        self._shown = shown or {}
        self._decoder = _Utf8Decoder(errors="replace")
        self._strips_next_space = starts_text and token_bytes.strips_leading_space
        self._is_first = starts_text and token_bytes.has_first_bytes

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the characters completed by these ids; may be empty."""
        token_bytes = self._token_bytes
        if self._is_first or self._shown:
            text = self._decoder.decode(b"".join([self._bytes_of(token_id) for token_id in token_ids]))
        else:
            text = self._decoder.decode(b"".join([token_bytes[token_id] for token_id in token_ids]))
        if self._strips_next_space and text:
            self._strips_next_space = False
            text = text.removeprefix(" ")
        return text

    def _bytes_of(self, token_id: int) -> bytes:
        shown = self._shown.get(token_id)
        if shown is not None:
            self._is_first = False
            return shown
        if self._is_first and self._token_bytes[token_id]:
            self._is_first = False
            return self._token_bytes.first_bytes(token_id)
        return self._token_bytes[token_id]


class StopStringFinder:
    """Finds the stop string that is completed first in a text that arrives in pieces.

    Attributes:
        is_stopped: a stop string was found.
        matched: the stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.is_stopped = False
        self.matched: str | None = None

    @property
    def has_stops(self) -> bool:
        """True if there is a stop string to look for."""
        return bool(self._stops)

    def push(self, text: str) -> str:
        """Return the text that is certain not to be part of a stop string; empty once one was found."""
        if self.is_stopped or not self._stops:
            return "" if self.is_stopped else text
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            self._held = ""
            _, start, self.matched = min(found)
            return text[:start]
        hold_from = min(start_of_partial(text, stop) for stop in self._stops)
        self._held = text[hold_from:]
        return text[:hold_from]

    def flush(self) -> str:
        """Return the text that was held back, after the sequence ended without a stop string."""
        held, self._held = self._held, ""
        return held


def start_of_partial(text: str, mark: str) -> int:
    """Return the start of the longest suffix of `text` that is a prefix of `mark`; `len(text)` if there is none."""
    at = max(0, len(text) - len(mark) + 1)
    while (at := text.find(mark[0], at)) >= 0:
        if mark.startswith(text[at:]):
            return at
        at += 1
    return len(text)


def _decoder_steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        raise UnsupportedTokenizer("the tokenizer has no decoder")
    steps: list[dict[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    for step in steps:
        is_known = step["type"] in ("ByteLevel", "ByteFallback", "Fuse", "Strip", "Metaspace")
        if not is_known and not (step["type"] == "Replace" and "String" in step["pattern"]):
            raise UnsupportedTokenizer(f"tokenizer decoder {step['type']} is not supported")
    return steps


def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte of each character in GPT-2's byte-level alphabet."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_level_alphabet()
