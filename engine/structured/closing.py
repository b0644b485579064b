"""The way from any state of a matcher to a text that matches: a short one, in tokens.

The parser library says what may come next, not how much must. So the search walks: what is forced is taken, and where
there is a choice the byte that usually ends things is (a quote inside a string, then brackets, then commas), or, where
nothing ends, a word of the caller's patterns, or the byte that was taken least often, so that no loop holds it. The
result is an upper bound of what closing needs, near the least for JSON. Knows nothing of limits or sequences.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.protocol.output_format import Constraint
from engine.structured.compile import (
    closing_bound_of,
    ends_itself,
    largest_step_of,
    num_endings_of,
    probe_of,
    words_of,
)
from engine.structured.token_view import TokenView

if TYPE_CHECKING:
    from llguidance import LLMatcher

_MAX_CHOICES = 2_000  # of one search; what needs more is taken for endless
_MAX_TOKENS = 8_192  # likewise, before they are joined
_PATIENCE = 64  # times a bracket, comma or quote may be taken, beyond those it takes, before it is part of a loop
_SPELLED = -2
_ENDINGS = b'}],:"'
_QUOTE = ord('"')
_MAX_USES = 1 << 30
_LAST_WORD = "aa"  # what may end a text that must end in letters: the name of a domain, an abbreviation


def _order(first: bytes) -> tuple[int, ...]:
    """All bytes, those in `first` first and white space and escapes last."""
    last = b"\t\n\r \\"
    return (*first, *(byte for byte in range(256) if byte not in first + last), *last)


_BETWEEN = _order(b'}],:0123456789"[ntf-{')
_WITHIN_STRING = _order(b'"@.-_/:+#0a1A')
_LOWERCASE = b"abcdefghijklmnopqrstuvwxyz"


class Closing:
    """What is known of closing the texts of one constraint. `bound`: tokens that close any of them wherever it stands
    in what a schema describes, None if unknown. `probe`: tokens that may come within a string of any text and nowhere
    else, [] if there are none. `ends_itself`: whether nothing can follow a text, so far as is known. All else is found
    when first asked for.
    """

    def __init__(self, constraint: Constraint, matcher: LLMatcher | None, view: TokenView) -> None:
        """`matcher` has consumed nothing, and never will. It may come later, but before anything that is found."""
        self.bound = closing_bound_of(constraint, view)
        probe = probe_of(constraint)
        self.probe = view.spell(probe) if probe else []
        self.ends_itself = ends_itself(constraint)
        self._constraint = constraint
        self.matcher = matcher
        self._view = view

    @cached_property
    def words(self) -> tuple[str, ...]:
        """What may have to be spelled."""
        return words_of(self._constraint)

    @cached_property
    def num_endings(self) -> int:
        """What may have to be ended, or more."""
        return num_endings_of(self._constraint)

    @cached_property
    def largest_step(self) -> int:
        """What one token may add to the tokens that closing needs."""
        return largest_step_of(self._constraint)

    @cached_property
    def first(self) -> list[int] | None:
        """A close from before the first token."""
        assert self.matcher is not None
        return find_close(self.matcher, self._view, self.words, num_endings=self.num_endings)


def find_close(
    matcher: LLMatcher,
    view: TokenView,
    words: tuple[str, ...] = (),
    max_choices: int = _MAX_CHOICES,
    *,
    num_endings: int = 0,
    is_in_string: bool = False,
) -> list[int] | None:
    """Tokens after which `matcher` accepts, [] if it does already; None if none were found. Leaves it as it was.
    `num_endings`: brackets, commas and quotes that may have to come. `is_in_string`: the text is known to stand in a
    JSON string that may be any, and that a quote ends."""
    walk = _Walk(matcher.deep_copy(), view, words, _PATIENCE + num_endings)
    if is_in_string:
        walk.end_string()
    if not walk.go(max_choices):
        return None
    joined = _join(walk.path, view)
    return joined if len(joined) < len(walk.path) and closes(matcher, joined, view.eos_token_ids) else walk.path


def closes(matcher: LLMatcher, token_ids: list[int], end_ids: tuple[int, ...] = ()) -> bool:
    """Whether `matcher` accepts after these tokens. Leaves it as it was. With one of `end_ids`, which may come where a
    text is complete, that is asked in one call."""
    if not token_ids:
        return bool(matcher.is_accepting())
    if end_ids:
        return bool(matcher.validate_tokens([*token_ids, end_ids[0]]) > len(token_ids))
    trial = matcher.deep_copy()
    return trial.try_consume_tokens(token_ids) == len(token_ids) and bool(trial.is_accepting())


class _Walk:
    """One search, on a matcher of its own. `path` holds the tokens that it has consumed."""

    def __init__(self, matcher: LLMatcher, view: TokenView, words: tuple[str, ...], patience: int) -> None:
        self._patience = patience
        self.path: list[int] = []
        self._words = [*(word for word in words if len(word) > 1), *([_LAST_WORD] if words else ())]
        self._signs = [ord(word) for word in words if len(word) == 1]
        self._matcher = matcher
        self._view = view
        self._byte_ids = view.ids_of_bytes
        self._ends: dict[int, int] = {}  # how often it was taken to end something, by byte
        self._uses: dict[int, int] = {}  # how often it was taken otherwise since then, by byte

    def go(self, max_choices: int) -> bool:
        for _ in range(max_choices):
            if self._matcher.is_accepting():
                return True
            if self._matcher.is_stopped() or len(self.path) >= _MAX_TOKENS:
                return False
            if self._take(self._matcher.compute_ff_tokens()):
                continue
            token_id = self._choose()
            if token_id != _SPELLED and (token_id < 0 or not self._take([token_id])):
                return False
        return False

    def end_string(self) -> None:
        """What `_choose` would come to, without a mask."""
        self._take([self._byte_ids[_QUOTE]])

    def _take(self, token_ids: list[int]) -> bool:
        """Consume as many of `token_ids` as the matcher takes; whether there were any."""
        num_taken = self._matcher.try_consume_tokens(token_ids[:_MAX_TOKENS]) if token_ids else 0
        self.path += token_ids[:num_taken]
        return num_taken > 0

    def _num_uses(self, byte: int) -> int:
        return self._uses.get(byte, 0)

    def _choose(self) -> int:
        """The next token where more than one may follow; -1 if none may; _SPELLED if a word was taken instead."""
        mask, ids = self._matcher.compute_bitmask(), self._byte_ids

        def is_allowed(byte: int) -> bool:
            token_id = ids[byte]
            return token_id >= 0 and mask[token_id >> 3] >> (token_id & 7) & 1 > 0

        is_quote_allowed, num_letters = is_allowed(_QUOTE), sum(map(is_allowed, _LOWERCASE))
        is_free = num_letters == 26 or (is_quote_allowed and num_letters > 13)
        must_spell = is_free and not is_quote_allowed  # something, before the string can end
        if must_spell and self._words and self._spell():
            return _SPELLED
        endings = b"" if must_spell else _ENDINGS
        if must_spell and self._signs:
            sign = min(filter(is_allowed, self._signs), key=self._num_uses, default=-1)
            if sign >= 0 and self._num_uses(sign) < _PATIENCE:
                self._uses[sign] = self._num_uses(sign) + 1
                return ids[sign]
        chosen, fewest = -1, _MAX_USES
        for byte in filter(is_allowed, _WITHIN_STRING if is_free else _BETWEEN):
            num_uses = self._num_uses(byte)
            if byte in endings:
                num_uses = max(0, self._ends.get(byte, 0) - self._patience)
            if num_uses < fewest:
                chosen, fewest = byte, num_uses
            if not num_uses:
                break
        if chosen < 0:
            return self._first_other(np.frombuffer(mask, dtype=np.uint8))
        if chosen in endings:
            self._uses.clear()
            self._ends[chosen] = self._ends.get(chosen, 0) + 1
        else:
            self._uses[chosen] = self._num_uses(chosen) + 1
        return ids[chosen]

    def _spell(self) -> bool:
        """Take a word, if there is one after which the text or the string it stands in can end."""
        tokenizer = self._view.tokenizer
        no_tokens: list[int] = []
        quote = tokenizer.greedy_tokenize('"')
        for word in self._words:
            for before in ("", "a", "A", "0", "-"):
                token_ids = tokenizer.greedy_tokenize(before + word)
                for after in (no_tokens, quote):
                    trial = self._matcher.deep_copy()
                    is_taken = trial.try_consume_tokens(token_ids + after) == len(token_ids + after)
                    if is_taken and (after or trial.is_accepting()):
                        return self._take(token_ids)
        return False

    def _first_other(self, mask: NDArray[np.uint8]) -> int:
        """The first allowed token that ends nothing: a control token, or one of several bytes."""
        bits = np.unpackbits(mask, bitorder="little")
        bits[list(self._view.eos_token_ids)] = 0
        allowed = np.flatnonzero(bits)
        return int(allowed[0]) if len(allowed) else -1


def _join(token_ids: list[int], view: TokenView) -> list[int]:
    """The same bytes in fewer tokens; control tokens stay."""
    tokenizer, run = view.tokenizer, b""
    joined: list[int] = []
    for token_id in [*token_ids, None]:
        if token_id is not None and not tokenizer.is_special_token(token_id):
            run += tokenizer.decode_bytes([token_id])
            continue
        try:
            joined += tokenizer.greedy_tokenize(run.decode()) if run else []
        except UnicodeDecodeError:
            return token_ids
        run = b""
        if token_id is not None:
            joined.append(token_id)
    return joined
