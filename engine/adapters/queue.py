"""Which sequences wait for their adapter, and whose turn it is to get one a place.

A sequence whose adapter is there goes on at once. Any other waits: until its adapter is read, and where every place is
in use, until those who use one have ended, as sequences wait for blocks. The tenant that has been served least goes
first, and within a tenant who came first. Whoever waits for a place lets others join the adapters that are there for
PATIENCE_S. Then he goes before all until he has it, and nobody joins those that have to leave for him. Called by the
engine's thread alone; knows neither files nor memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from collections.abc import Sequence as Items
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from engine.adapters.local_adapter import LocalAdapter
from engine.report import OUT_OF_CAPACITY, RUNNING
from engine.scheduling.fairness import TenantCounters
from engine.scheduling.sequence import Sequence
from engine.scheduling.waiting import Turns

if TYPE_CHECKING:
    from engine.adapters.slot_pool import AdapterSize

PATIENCE_S = 1.0


@dataclass(frozen=True)
class Reading:
    """What came of reading an adapter. RUNNING: it is there, and held once by whoever had it read. OUT_OF_CAPACITY: it
    can be served, but has no place now; `need` says of what size. Any other code is the end of those who want it."""

    code: int
    need: AdapterSize | None = None


class AdapterStore(Protocol):
    """What an AdapterCache offers: adapters by handle, read beside the steps; none leaves that is held."""

    @property
    def sites(self) -> dict[str, tuple[int, int]]: ...
    def hold(self, digest: str) -> int: ...
    def release(self, digest: str) -> bool: ...
    def read(self, adapter: LocalAdapter, may_place: bool) -> Future[Reading]: ...
    def has_room(self, needs: Items[AdapterSize]) -> bool: ...
    def evictions_for(self, needs: Items[AdapterSize]) -> Collection[str]: ...


@dataclass(eq=False)
class _Wanted:
    """An adapter that somebody waits for."""

    adapter: LocalAdapter
    since_s: float
    sequences: dict[int, Sequence] = field(default_factory=dict)
    need: AdapterSize | None = None  # once it is known to be one that can be served, and waits for a place
    reading: Future[Reading] | None = None


class AdapterQueue:
    """The sequences of one engine that wait for an adapter, and those that hold one."""

    def __init__(
        self,
        bank: AdapterStore,
        counters: TenantCounters,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bank, self._counters, self._clock = bank, counters, clock
        self._turns = Turns(counters)
        self._wanted: dict[str, _Wanted] = {}  # by digest
        self._held: dict[int, str] = {}  # sequence id -> digest
        self._closed: Collection[str] = frozenset()  # digests that nobody joins: they have to leave
        self._late: _Wanted | None = None  # for whom there is no room, and who has lost patience
        self._is_changed = False  # since turns were last given
        self._patience_ends_s = math.inf  # of the first for whom there is no room

    @property
    def num_waiting(self) -> int:
        return len(self._turns)

    def is_waiting(self, sequence: Sequence) -> bool:
        wanted = self._wanted.get(_digest_of(sequence))
        return wanted is not None and sequence.sequence_id in wanted.sequences

    def add(self, sequence: Sequence) -> None:
        """Give it the handle of its adapter, held until `forget`; it stays 0 if that has to be waited for: `take_ready`
        tells when."""
        digest = _digest_of(sequence)
        if digest in self._wanted or digest in self._closed or not self._hold(sequence):
            self._await(sequence)

    def take_ready(self, timeout_s: float = 0.0) -> list[tuple[Sequence, int]]:
        """Sequences whose wait is over: RUNNING with their handle, or the finish code of one that cannot be served.
        Waits up to `timeout_s` for the first."""
        ready = self._take()
        if timeout_s and not ready:
            wait(self._readings().values(), timeout_s, return_when="FIRST_COMPLETED")
            ready = self._take()
        return ready

    def take_overstaying(self, queued: Callable[[], Items[Sequence]]) -> list[Sequence]:
        """Of the sequences that are `queued` for a slot, those that hold an adapter which has to leave, and whose
        tenant has been served more than the one that waits for its place: they give it back, and wait for it again.
        Once: so that whoever has a place again also comes to run."""
        if self._late is None or not self._late.sequences:
            return []
        served = self._counters.served
        least = min(float(served[each.tenant_index]) for each in self._late.sequences.values())
        holders = [each for each in queued() if _digest_of(each) in self._closed and not each.has_returned_adapter]
        overstaying = [each for each in holders if served[each.tenant_index] > least]
        for sequence in overstaying:
            self.forget(sequence)
            sequence.adapter, sequence.has_returned_adapter = 0, True
            self._await(sequence)
        return overstaying

    def forget(self, sequence: Sequence) -> None:
        """It ended, wherever it was."""
        if self.is_waiting(sequence):
            self._turns.leave(sequence)
            self._leave(sequence)
            return
        digest = self._held.pop(sequence.sequence_id, None)
        if digest is not None and self._bank.release(digest):
            self._is_changed = True

    # ── one by one ──

    def _hold(self, sequence: Sequence) -> bool:
        """Whether its adapter is there, and its own from now on."""
        digest = _digest_of(sequence)
        sequence.adapter = self._bank.hold(digest)
        if sequence.adapter:
            self._held[sequence.sequence_id] = digest
        return sequence.adapter > 0

    def _await(self, sequence: Sequence) -> None:
        """Have it wait for its adapter."""
        adapter = sequence.request.adapter
        assert adapter is not None, "it goes through an adapter"
        digest = adapter.digest
        wanted = self._wanted.get(digest)
        if wanted is None:
            is_free = digest not in self._closed and all(each.need is None for each in self._wanted.values())
            wanted = self._wanted[digest] = _Wanted(adapter, self._clock())
            wanted.reading = self._bank.read(adapter, may_place=is_free)  # else it waits for its turn
        wanted.sequences[sequence.sequence_id] = sequence
        self._turns.join(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """One sequence less wants its adapter. What is being read is read to the end."""
        digest = _digest_of(sequence)
        wanted = self._wanted[digest]
        del wanted.sequences[sequence.sequence_id]
        if not wanted.sequences and wanted.reading is None:
            del self._wanted[digest]
            self._is_changed = True

    # ── turns ──

    def _readings(self) -> dict[str, Future[Reading]]:
        return {digest: each.reading for digest, each in self._wanted.items() if each.reading is not None}

    def _take(self) -> list[tuple[Sequence, int]]:
        ready: list[tuple[Sequence, int]] = []
        for digest, reading in self._readings().items():
            if reading.done():
                self._note(digest, reading.result(), ready)
        if self._is_changed or self._clock() >= self._patience_ends_s:
            self._is_changed = False
            self._give_turns(ready)
        return ready

    def _note(self, digest: str, reading: Reading, ready: list[tuple[Sequence, int]]) -> None:
        """What was to be read is read, or waits for a place from now on."""
        wanted = self._wanted[digest]
        wanted.reading, self._is_changed = None, True
        if reading.code == OUT_OF_CAPACITY and wanted.sequences:
            wanted.need = reading.need
            return
        del self._wanted[digest]
        for sequence in wanted.sequences.values():
            self._turns.leave(sequence)
            if reading.code == RUNNING:
                self._hold(sequence)
            ready.append((sequence, reading.code))
        if reading.code == RUNNING:
            self._bank.release(digest)

    def _give_turns(self, ready: list[tuple[Sequence, int]]) -> None:
        """Have those read that have a place now, up to the first that has none; nobody passes by that one to a place of
        his own. Behind it others join what is there, unless that has to leave."""
        placing = [each for each in self._wanted.values() if each.reading is not None and each.need is not None]
        waiting = self._parked()
        self._close_for([*placing, *waiting[:1]] if waiting[:1] == [self._late] else placing)
        parked = iter(waiting)
        stuck = next((each for each in parked if not self._try(each, placing, ready)), None)
        self._late, self._patience_ends_s = None, math.inf
        if stuck is not None and self._clock() >= stuck.since_s + PATIENCE_S:
            self._late = stuck
            self._close_for([*placing, stuck])
        elif stuck is not None:
            self._patience_ends_s = stuck.since_s + PATIENCE_S
        for wanted in parked:
            self._join(wanted, ready)

    def _close_for(self, placing: list[_Wanted]) -> None:
        """From now on nobody joins what has to leave for these."""
        self._closed = self._bank.evictions_for(_needs_of(placing)) if placing else frozenset()

    def _try(self, wanted: _Wanted, placing: list[_Wanted], ready: list[tuple[Sequence, int]]) -> bool:
        """Join the adapter or have it read. False: it has no room beside those that are about to have a place."""
        if wanted.adapter.digest in self._closed or self._join(wanted, ready):
            return True
        if not self._bank.has_room(_needs_of([*placing, wanted])):
            return False
        wanted.reading = self._bank.read(wanted.adapter, may_place=True)
        placing.append(wanted)
        self._close_for(placing)
        return True

    def _parked(self) -> list[_Wanted]:
        """Those that wait for a place, in turn; who has lost patience before all."""
        parked: dict[str, _Wanted] = {}
        for sequence in self._turns.in_turn():
            digest = _digest_of(sequence)
            if self._wanted[digest].reading is None:
                parked.setdefault(digest, self._wanted[digest])
        return sorted(parked.values(), key=lambda each: each is not self._late)

    def _join(self, wanted: _Wanted, ready: list[tuple[Sequence, int]]) -> bool:
        """Whether the adapter is there, and may be joined; then all that wait for it have it."""
        if wanted.adapter.digest in self._closed:
            return False
        for sequence in wanted.sequences.values():
            if not self._hold(sequence):
                return False
            self._turns.leave(sequence)
            ready.append((sequence, RUNNING))
        del self._wanted[wanted.adapter.digest]
        return True


def _digest_of(sequence: Sequence) -> str:
    return sequence.request.adapter.digest if sequence.request.adapter is not None else ""


def _needs_of(many: Items[_Wanted]) -> list[AdapterSize]:
    return [each.need for each in many if each.need is not None]
