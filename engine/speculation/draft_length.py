"""How many tokens are guessed for a sequence: more while guesses stand, fewer when they do not, none for a while when
they fail again and again.

So a text that cannot be guessed costs one vain guess in RESTS steps, and one that repeats itself is guessed at length.
One row per slot, which begins anew when another sequence has it. Knows no tokens.
"""

from __future__ import annotations

import numpy as np

FIRST = 4
LEAST = 2
MOST = 15
RESTS = 64  # steps without a guess, at most


class Pace:
    """Columns over `num_slots` slots."""

    def __init__(self, num_slots: int) -> None:
        self._owner = np.full(num_slots, -1, dtype=np.int64)
        self._size = np.zeros(num_slots, dtype=np.int32)
        self._num_failures = np.zeros(num_slots, dtype=np.int32)  # in a row
        self._rest = np.zeros(num_slots, dtype=np.int32)

    def next_size(self, slot: int, sequence_id: int) -> int:
        """How many tokens to guess for the sequence in its next step; 0 while it rests. DraftRequest once a step."""
        if self._owner[slot] != sequence_id:
            self._owner[slot], self._size[slot] = sequence_id, FIRST
            self._num_failures[slot] = self._rest[slot] = 0
        if self._rest[slot]:
            self._rest[slot] -= 1
            return 0
        return int(self._size[slot])

    def learn(self, slot: int, num_drafted: int, num_accepted: int) -> None:
        """What came of a guess."""
        if num_accepted:
            self._num_failures[slot] = 0
            more = 2 * num_drafted if num_accepted == num_drafted else num_accepted + 1
            self._size[slot] = min(max(LEAST, more), MOST)
            return
        self._num_failures[slot] += 1
        self._size[slot] = LEAST
        self._rest[slot] = min(1 << min(int(self._num_failures[slot]), 16), RESTS) - 1
