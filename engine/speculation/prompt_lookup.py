"""Guesses that cost nothing: what followed the last time that the same tokens stood in a row.

Answers that quote, correct, translate or summarise say much of their prompt again. The longest match with the end of a
sequence wins, the latest of equals; a match that runs into that end is a loop, and is taken for one. Knows tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.sequence import Ints
from engine.speculation.speculator import Asked

_LEAST_MATCH = 2  # tokens in a row
_LONGEST_MATCH = 8

_NOTHING = np.empty(0, dtype=np.int32)


class PromptLookup:
    """See `engine.speculation.speculator.Guesses`."""

    def guess(self, asked: Sequence[Asked]) -> list[Ints]:
        return [find_continuation(each.token_ids, each.most) for each in asked]


def find_continuation(token_ids: Ints, most: int) -> Ints:
    """What may follow `token_ids` [length], up to `most` tokens; empty if its end was never there before."""
    length = len(token_ids)
    if length <= _LEAST_MATCH:
        return _NOTHING
    last, before = token_ids[-1], token_ids[-2]
    ends = np.flatnonzero((token_ids[1:-1] == last) & (token_ids[:-2] == before)) + 2  # where what follows begins
    if not len(ends):
        return _NOTHING
    for size in range(_LEAST_MATCH + 1, _LONGEST_MATCH + 1):
        if len(ends) == 1 or size > length:
            break
        longer = ends[ends >= size]
        longer = longer[token_ids[longer - size] == token_ids[-size]]
        if not len(longer):
            break
        ends = longer
    start = int(ends[-1])
    found = token_ids[start : start + most]
    return found if len(found) == most else np.resize(token_ids[start:], most)
