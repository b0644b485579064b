"""Who waits, and whose turn it is: a fair order, and the bounded room of all sequences that have no slot yet.

First come first served within a tenant; between tenants the one that has been served least goes next. Looks at nothing
of a sequence but its tenant: never at what another tenant has cached.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import zip_longest

from engine.scheduling.fairness import TenantCounters
from engine.scheduling.sequence import Sequence


class Turns:
    """Sequences that wait for one thing, in a fair order."""

    def __init__(self, counters: TenantCounters) -> None:
        self._counters = counters
        self._queues: dict[int, dict[int, Sequence]] = {}  # tenant index -> sequence id -> sequence, oldest first
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def join(self, sequence: Sequence) -> None:
        """It waits behind those of its tenant."""
        self._queues.setdefault(sequence.tenant_index, {})[sequence.sequence_id] = sequence
        self._num_waiting += 1

    def leave(self, sequence: Sequence) -> None:
        """It waits no longer."""
        _take_out(self._queues, sequence)
        self._num_waiting -= 1

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


class WaitingQueue(Turns):
    """All that have no slot: those whose turns these are, and those that wait for something else before, their adapter
    or their matcher.

    There are places for `max_waiting` beside those for whom a slot is free. Each takes one when it comes and keeps it
    until it runs, so that nobody who has waited is refused for want of one. When all are taken, the newest of the
    tenant that has most makes room for a tenant that has fewer.
    """

    def __init__(self, counters: TenantCounters, max_waiting: int) -> None:
        super().__init__(counters)
        self._max_waiting = max_waiting
        self._places: dict[int, dict[int, Sequence]] = {}  # as the turns are, of all
        self._num_places = 0

    @property
    def num_places(self) -> int:
        """That are taken: by those that wait for a slot, and by those that wait for something else before."""
        return self._num_places

    def enter(self, sequence: Sequence, num_free_slots: int = 0) -> Sequence | None:
        """Give it a place; it waits for a slot from `join` on. Returns the sequence that has no place: none, itself, or
        one that had to give its own back, and waits for nothing any more."""
        refused: Sequence | None = None
        if self._num_places >= self._max_waiting + num_free_slots:
            refused = self._crowded_out_by(sequence)
            if refused is sequence:
                return sequence
            self.remove(refused)
        self._places.setdefault(sequence.tenant_index, {})[sequence.sequence_id] = sequence
        self._num_places += 1
        return refused

    def remove(self, sequence: Sequence) -> None:
        """It runs or ended: its place is free."""
        if sequence.sequence_id in self._queues.get(sequence.tenant_index, ()):
            self.leave(sequence)
        _take_out(self._places, sequence)
        self._num_places -= 1

    def _crowded_out_by(self, sequence: Sequence) -> Sequence:
        own = len(self._places.get(sequence.tenant_index, ()))
        if not self._places:
            return sequence  # room for none at all
        most = max(self._places.values(), key=len)
        if len(most) <= own + 1:
            return sequence
        return next(reversed(most.values()))


def _take_out(queues: dict[int, dict[int, Sequence]], sequence: Sequence) -> None:
    queue = queues[sequence.tenant_index]
    del queue[sequence.sequence_id]
    if not queue:
        del queues[sequence.tenant_index]
