"""Draft length: how many tokens to draft for each sequence.

The length grows while drafts are accepted and shrinks when they are rejected. After repeated failures a sequence gets
no drafts for some steps, so text that cannot be predicted costs one rejected draft every MAX_PAUSE steps.
"""

from __future__ import annotations

import numpy as np

INITIAL = 4
MIN = 2
MAX = 15
MAX_PAUSE = 64  # steps without a draft


class DraftLength:
    """One row per slot. A row is reset when another sequence gets the slot."""

    def __init__(self, num_slots: int) -> None:
        self._owner = np.full(num_slots, -1, dtype=np.int64)
        self._length = np.zeros(num_slots, dtype=np.int32)
        self._num_failures = np.zeros(num_slots, dtype=np.int32)  # in succession
        self._pause = np.zeros(num_slots, dtype=np.int32)

    def next(self, slot: int, sequence_id: int) -> int:
        """Return the draft length of the sequence's next step, 0 during a pause. Call once a step."""
        if self._owner[slot] != sequence_id:
            self._owner[slot], self._length[slot] = sequence_id, INITIAL
            self._num_failures[slot] = self._pause[slot] = 0
        if self._pause[slot]:
            self._pause[slot] -= 1
            return 0
        return int(self._length[slot])

    def learn(self, slot: int, num_drafts: int, num_accepted: int) -> None:
        """Adjust to a step in which `num_accepted` of `num_drafts` draft tokens were accepted."""
        if num_accepted:
            self._num_failures[slot] = 0
            longer = 2 * num_drafts if num_accepted == num_drafts else num_accepted + 1
            self._length[slot] = min(max(MIN, longer), MAX)
            return
        self._num_failures[slot] += 1
        self._length[slot] = MIN
        self._pause[slot] = min(1 << min(int(self._num_failures[slot]), 16), MAX_PAUSE) - 1
