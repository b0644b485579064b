"""The bounded queue of sequences that have no slot yet, in a fair order.

First come first served within a tenant; between tenants the one that has been served least goes next. When the queue
is full, the newest of the tenant with the longest queue makes room for a tenant with a shorter one. Looks at nothing
of a sequence but its tenant: never at what another tenant has cached.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import zip_longest

from engine.scheduling.fairness import TenantCounters
from engine.sequence import Sequence


class WaitingQueue:
    """At most `max_waiting` sequences beside those for whom a slot is free already."""

    def __init__(self, counters: TenantCounters, max_waiting: int) -> None:
        self._counters = counters
        self._max_waiting = max_waiting
        self._queues: dict[int, dict[int, Sequence]] = {}  # tenant index -> sequence id -> sequence, oldest first
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, sequence: Sequence, num_free_slots: int = 0) -> Sequence | None:
        """Queue it. Returns the sequence that found no place: none, itself, or one pushed out."""
        refused: Sequence | None = None
        if self._num_waiting >= self._max_waiting + num_free_slots:
            refused = self._crowded_out_by(sequence)
            if refused is sequence:
                return sequence
            self.remove(refused)
        self._queues.setdefault(sequence.tenant_index, {})[sequence.sequence_id] = sequence
        self._num_waiting += 1
        return refused

    def remove(self, sequence: Sequence) -> None:
        queue = self._queues[sequence.tenant_index]
        del queue[sequence.sequence_id]
        self._num_waiting -= 1
        if not queue:
            del self._queues[sequence.tenant_index]

    def find_next(self, skipped: Collection[int] = ()) -> Sequence | None:
        """The first sequence of the least served tenant, but for the tenants `skipped` (indices)."""
        served = self._counters.served
        candidates = [index for index in self._queues if index not in skipped]
        if not candidates:
            return None
        return next(iter(self._queues[min(candidates, key=served.__getitem__)].values()))

    def in_turn(self) -> list[Sequence]:
        """All of them as their turns come: the first of every tenant, that of the least served before, then the second
        of every tenant, and so on."""
        served = self._counters.served
        queues = [self._queues[index].values() for index in sorted(self._queues, key=served.__getitem__)]
        return [each for turn in zip_longest(*queues) for each in turn if each is not None]

    def _crowded_out_by(self, sequence: Sequence) -> Sequence:
        own = len(self._queues.get(sequence.tenant_index, ()))
        if not self._queues:
            return sequence  # room for none at all
        longest = max(self._queues.values(), key=len)
        if len(longest) <= own + 1:
            return sequence
        return next(reversed(longest.values()))
