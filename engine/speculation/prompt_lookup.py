"""Prompt lookup: draft the tokens that followed the last time the same n-gram occurred in the sequence.

Completions that quote, correct, translate or summarize repeat much of their prompt. The n-gram at the end of a sequence
is looked up among all tokens before it. A longer n-gram is preferred over a shorter one and the latest occurrence over
earlier ones. An occurrence that reaches the end of the sequence is treated as a loop. N-grams shorter than the shortest
in NGRAMS recur in any text and predict little. Each token is read once, and only the latest ones of a very long text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.arrays import Ints
from engine.speculation.speculator import DraftRequest
from telemetry.bounded_cache import BoundedCache

NGRAMS = (8, 4)  # lengths, preferred one first
MAX_INITIAL_TOKENS = 16_384  # read of a sequence on its first request: 5 ms
_MAX_SEQUENCES = 8  # with an index; the least recently used index is dropped first

_NO_TOKENS = np.empty(0, dtype=np.int32)


class PromptLookup:
    """A drafter without a model. Implements `engine.speculation.speculator.Drafter`."""

    def __init__(self) -> None:
        self._indexes: BoundedCache[int, _NgramIndex] = BoundedCache(_MAX_SEQUENCES)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Ints]:
        return [self._index(each.sequence_id).continuation(each.token_ids, each.max_tokens) for each in requests]

    def _index(self, sequence_id: int) -> _NgramIndex:
        index = self._indexes.get(sequence_id)
        if index is None:
            index = _NgramIndex()
            self._indexes.put(sequence_id, index)
        return index


class _NgramIndex:
    """The latest position after each n-gram of one sequence, whose tokens only grow."""

    def __init__(self) -> None:
        self._positions: dict[tuple[int, ...], int] = {}
        self._num_read = 0  # n-grams that end before this position are indexed

    def continuation(self, token_ids: Ints, max_tokens: int) -> Ints:
        """Return up to `max_tokens` that may follow `token_ids` [length]; empty if its last n-gram is new."""
        length, num_read = len(token_ids), self._num_read
        first = max(0, num_read - NGRAMS[0], length - MAX_INITIAL_TOKENS)
        recent: list[int] = token_ids[first:].tolist()
        if length - num_read > NGRAMS[0]:
            self._add_all(recent, first)
        else:
            ends = range(num_read - first, length - first)  # indices in `recent` just after the n-grams
            new = [(end, size) for end in ends for size in NGRAMS if end >= size]
            self._positions.update((tuple(recent[end - size : end]), first + end) for end, size in new)
        self._num_read = length
        for size in NGRAMS:
            position = self._positions.get(tuple(recent[-size:]), -1)
            if position >= 0:
                found = token_ids[position : position + max_tokens]
                return found if len(found) == max_tokens else np.resize(token_ids[position:], max_tokens)
        return _NO_TOKENS

    def _add_all(self, recent: list[int], first: int) -> None:
        """Index all n-grams of `recent`, whose first token is at position `first`."""
        for size in NGRAMS:
            ngrams = zip(*(recent[offset : len(recent) - size + offset] for offset in range(size)), strict=True)
            self._positions.update(zip(ngrams, range(first + size, first + len(recent)), strict=False))
