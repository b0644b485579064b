"""Waiting sequences: a queue that is fair between tenants, and the bounded queue of all sequences without a slot.

Within a tenant the order is first come, first served; between tenants the least served one is next. The order depends
on nothing else, in particular not on what other tenants have in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import zip_longest

from engine.scheduling.fairness import TenantCounters
from engine.scheduling.sequence import Sequence

_ByTenant = dict[int, dict[int, Sequence]]  # tenant index -> sequence id -> sequence, oldest first


class FairQueue:
    """Sequences that wait for one resource, in fair order."""

    def __init__(self, counters: TenantCounters) -> None:
        self._counters = counters
        self._queues: _ByTenant = {}
        self._num_queued = 0

    def __len__(self) -> int:
        return self._num_queued

    def push(self, sequence: Sequence) -> None:
        """Add a sequence behind the others of its tenant."""
        self._queues.setdefault(sequence.tenant_index, {})[sequence.sequence_id] = sequence
        self._num_queued += 1

    def discard(self, sequence: Sequence) -> None:
        """Remove a queued sequence."""
        _remove(self._queues, sequence)
        self._num_queued -= 1

    def find_next(self, skipped: Collection[int] = ()) -> Sequence | None:
        """Return the first sequence of the least served tenant, leaving out the tenant indices in `skipped`."""
        served = self._counters.served
        candidates = [index for index in self._queues if index not in skipped]
        if not candidates:
            return None
        return next(iter(self._queues[min(candidates, key=served.__getitem__)].values()))

    def in_order(self) -> list[Sequence]:
        """Return all sequences: the first of each tenant, least served tenant first, then the second of each, …"""
        served = self._counters.served
        queues = [self._queues[index].values() for index in sorted(self._queues, key=served.__getitem__)]
        return [each for turn in zip_longest(*queues) for each in turn if each is not None]


class WaitingQueue(FairQueue):
    """All sequences without a slot: the queued ones, and those that still wait for their adapter or matcher.

    At most `max_waiting` sequences, and one more for each free slot. A sequence counts from `reserve` until it runs or
    ends, so that a waiting sequence is never rejected later for lack of room. If the queue is full, the newest sequence
    of the tenant with the most entries is dropped for a tenant with fewer.
    """

    def __init__(self, counters: TenantCounters, max_waiting: int) -> None:
        super().__init__(counters)
        self._max_waiting = max_waiting
        self._entries: _ByTenant = {}
        self._num_entries = 0

    @property
    def num_entries(self) -> int:
        """Number of sequences that count towards `max_waiting`, queued or not."""
        return self._num_entries

    def reserve(self, sequence: Sequence, num_free_slots: int = 0) -> Sequence | None:
        """Make room for a sequence; it is queued by `push`.

        Return the sequence that has no room: None, `sequence` itself, or one that was removed to make room.
        """
        dropped: Sequence | None = None
        if self._num_entries >= self._max_waiting + num_free_slots:
            dropped = self._choose_dropped(sequence)
            if dropped is sequence:
                return sequence
            self.remove(dropped)
        self._entries.setdefault(sequence.tenant_index, {})[sequence.sequence_id] = sequence
        self._num_entries += 1
        return dropped

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that now runs or has ended."""
        if sequence.sequence_id in self._queues.get(sequence.tenant_index, ()):
            self.discard(sequence)
        _remove(self._entries, sequence)
        self._num_entries -= 1

    def _choose_dropped(self, newcomer: Sequence) -> Sequence:
        num_own = len(self._entries.get(newcomer.tenant_index, ()))
        if not self._entries:
            return newcomer
        largest = max(self._entries.values(), key=len)
        if len(largest) <= num_own + 1:
            return newcomer
        return next(reversed(largest.values()))


def _remove(queues: _ByTenant, sequence: Sequence) -> None:
    queue = queues[sequence.tenant_index]
    del queue[sequence.sequence_id]
    if not queue:
        del queues[sequence.tenant_index]
