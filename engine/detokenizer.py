"""Token ids -> text, a few at a time: never a broken character, and the same text for every split of the ids.

A token is a run of bytes (`TokenBytes` knows them); text is what those bytes spell once a character is whole. Bytes
that can never become a character turn into U+FFFD; a character that is still open when the sequence ends is dropped.
`StopFinder` holds text back while it could still become a stop string. Knows nothing of prompts or templates.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer as Vocabulary

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class UnsupportedTokenizer(Exception):
    """The tokenizer spells its tokens in a way that this file does not know."""


class TokenBytes:
    """Which bytes each token id spells; control tokens spell none.

    `texts` overrides the spelling of added tokens. `strips_leading_space` tells whether the tokenizer puts a space
    before a text of its own, which is taken off again when that text is decoded.
    """

    def __init__(self, vocabulary: Vocabulary, decoder: dict[str, Any] | None, texts: dict[int, str]) -> None:
        self._vocabulary = vocabulary
        self._known: dict[int, bytes] = {token_id: text.encode() for token_id, text in texts.items()}
        steps = _decoder_steps(decoder)
        kinds = {step["type"] for step in steps}
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_fallback = "ByteFallback" in kinds
        self._replacements = [
            (step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"
        ]
        self._replacements += [(step["replacement"], " ") for step in steps if step["type"] == "Metaspace"]
        self.strips_leading_space = any(
            (step["type"] == "Strip" and step["start"] > 0 and step["content"] == " ")
            or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
            for step in steps
        )

    def __getitem__(self, token_id: int) -> bytes:
        """The bytes of one token; none for an id outside the vocabulary."""
        spelled = self._known.get(token_id)
        if spelled is None:
            token = self._vocabulary.id_to_token(token_id)
            spelled = b"" if token is None else self._spell(token)
            self._known[token_id] = spelled
        return spelled

    def _spell(self, token: str) -> bytes:
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

    def __init__(self, token_bytes: TokenBytes, *, is_own_text: bool = True) -> None:
        """`is_own_text`: these ids are a text of their own, not the continuation of one that a reader has seen, so
        a leading space that the tokenizer put there is taken off."""
        self._token_bytes = token_bytes
        self._decoder = _Utf8Decoder(errors="replace")
        self._strips_next_space = is_own_text and token_bytes.strips_leading_space

    def push(self, token_ids: Iterable[int]) -> str:
        """The characters completed by these ids; may be empty."""
        spelled = self._token_bytes
        text = self._decoder.decode(b"".join([spelled[token_id] for token_id in token_ids]))
        if self._strips_next_space and text:
            self._strips_next_space = False
            text = text.removeprefix(" ")
        return text


class StopFinder:
    """Looks for stop strings across pieces of text; finds the one that is complete first, whatever the pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.is_stopped = False

    def push(self, text: str) -> str:
        """The text that is now certain not to be part of a stop string; nothing more once one was found."""
        if self.is_stopped or not self._stops:
            return "" if self.is_stopped else text
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            self._held = ""
            _, start = min(found)
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
        is_known = step["type"] in ("ByteLevel", "ByteFallback", "Fuse", "Strip", "Metaspace")
        if not is_known and not (step["type"] == "Replace" and "String" in step["pattern"]):
            raise UnsupportedTokenizer(f"tokenizer decoder {step['type']} is not supported")
    return steps


def _byte_level_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table), inverted."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_level_alphabet()
