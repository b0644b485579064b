"""Drafter without a model: what followed the last time that the same tokens stood in a row.

Answers that quote, correct, translate or summarise say much of their prompt again. The tokens that end a sequence are
looked up among all before them; a long run that is there wins over a short one, the latest place over earlier ones, and
one that runs into the end is a loop, and is taken for one. Shorter runs than the least come back in any text and say
little of what follows. Each token is read once, and only the latest of a very long text. Knows tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.arrays import Ints
from engine.speculation.speculator import DraftRequest
from telemetry.bounded_cache import BoundedCache

RUNS = (8, 4)  # tokens that must be the same, the better first
MOST_READ = 16_384  # tokens of a sequence, when it is first asked for: 5 ms
_MAX_SEQUENCES = 8  # remembered

_NOTHING = np.empty(0, dtype=np.int32)


class PromptLookup:
    """See `engine.speculation.speculator.Drafter`."""

    def __init__(self) -> None:
        self._memories: BoundedCache[int, _Memory] = BoundedCache(_MAX_SEQUENCES)

    def propose(self, asked: Sequence[DraftRequest]) -> list[Ints]:
        return [self._memory(each.sequence_id).continuation(each.token_ids, each.most) for each in asked]

    def _memory(self, sequence_id: int) -> _Memory:
        memory = self._memories.get(sequence_id)
        if memory is None:
            memory = _Memory()
            self._memories.put(sequence_id, memory)
        return memory


class _Memory:
    """Where each run of one sequence, which only grows, was last followed by something."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], int] = {}
        self._num_read = 0  # runs that end before this place are known

    def continuation(self, token_ids: Ints, most: int) -> Ints:
        """What may follow `token_ids` [length], up to `most` tokens; empty if its end was never there before."""
        length, num_read = len(token_ids), self._num_read
        first = max(0, num_read - RUNS[0], length - MOST_READ)
        recent: list[int] = token_ids[first:].tolist()
        if length - num_read > RUNS[0]:
            self._read_many(recent, first)
        else:
            for end in range(num_read - first, length - first):  # in `recent`, of the runs before the place
                for size in RUNS:
                    if end >= size:
                        self._places[tuple(recent[end - size : end])] = first + end
        self._num_read = length
        for size in RUNS:
            place = self._places.get(tuple(recent[-size:]), -1)
            if place >= 0:
                found = token_ids[place : place + most]
                return found if len(found) == most else np.resize(token_ids[place:], most)
        return _NOTHING

    def _read_many(self, recent: list[int], first: int) -> None:
        """The same for all of `recent`, whose first token is at the place `first`."""
        for size in RUNS:
            runs = zip(*(recent[offset : len(recent) - size + offset] for offset in range(size)), strict=True)
            self._places.update(zip(runs, range(first + size, first + len(recent)), strict=False))
