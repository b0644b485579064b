"""Closing of JSON text at the token limit.

A JSON value that would be cut by the token limit is closed instead: an open string is ended, then the open lists and
objects. Nothing else is added: no key, no value, no digit. Where this does not give text that matches the grammar (a
required property is missing, a number may be incomplete), generation goes on to the limit.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from engine.structured.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

CLOSING_WINDOW = 64  # tokens left, from which on closing is considered; deeper nesting is not closed

# Within this many tokens of the last chance to close, no list item or property begins: a key or an item that is
# incomplete at the limit could not be closed.
_MARGIN = 8

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*("?)', re.DOTALL)
_BRACKET = re.compile(rb"[{}\[\]]")
_NUMBER_CHARS = b"0123456789.eE+-"
_CLOSERS = {b"{": b"}", b"[": b"]"}


class JsonCloser:
    """Decides when the JSON text of one sequence must be closed. `matcher` is at the end of the text pushed so far."""

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary) -> None:
        self._matcher = matcher
        self._tokenizer = vocabulary.tokenizer
        self._token_ids: list[int] = []

    def push(self, token_ids: list[int]) -> None:
        self._token_ids += token_ids

    def closing_due(self, token_id: int, remaining: int) -> list[int]:
        """Return the tokens to write instead of `token_id` so that the text is closed within `remaining` tokens.

        Returns [] as long as `token_id` may be written: closing can wait, or is not possible here.
        """
        if self._continues_number(token_id):
            return []
        closing = self._find_closing(self._matcher, self._token_ids)
        room = remaining - len(closing)
        if not closing or room < 0 or room > _MARGIN:
            return []
        return [] if room > 0 and self._can_close_after(token_id, remaining - 1) else closing

    def _can_close_after(self, token_id: int, remaining: int) -> bool:
        matcher = self._matcher.deep_copy()
        if not matcher.try_consume_tokens([token_id]) or matcher.is_accepting():
            return True
        closing = self._find_closing(matcher, [*self._token_ids, token_id])
        return 0 < len(closing) <= remaining

    def _find_closing(self, matcher: LLMatcher, token_ids: list[int]) -> list[int]:
        """Return tokens after which the text matches the grammar; [] if closing does not achieve that."""
        if matcher.is_accepting():
            return []
        closing: list[int] = self._tokenizer.greedy_tokenize(closers_of(self._tokenizer.decode_bytes(token_ids)))
        trial = matcher.deep_copy()
        is_closed = trial.try_consume_tokens(closing) == len(closing) and trial.is_accepting()
        return closing if is_closed else []

    def _continues_number(self, token_id: int) -> bool:
        """Return True if `token_id` continues a number: closing before it would change the number's value."""
        before = self._tokenizer.decode_bytes(self._token_ids[-1:])
        after = self._tokenizer.decode_bytes([token_id])
        return before[-1:] in _digits and after[:1] in _digits


_digits = frozenset(bytes([byte]) for byte in _NUMBER_CHARS)


def closers_of(text: bytes) -> str:
    """Return the quote and brackets that end the open string, lists and objects of a beginning of JSON text."""
    is_in_string = any(not found[1] for found in _STRING.finditer(text))
    open_brackets: list[bytes] = []
    for bracket in _BRACKET.findall(_STRING.sub(b"", text)):
        if bracket in _CLOSERS:
            open_brackets.append(bracket)
        elif open_brackets:
            open_brackets.pop()
    brackets = b"".join(_CLOSERS[bracket] for bracket in reversed(open_brackets))
    return '"' * is_in_string + brackets.decode()
