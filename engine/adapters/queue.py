"""Adapter queue: sequences that wait for an adapter, and the order in which adapters are loaded.

A sequence whose adapter is loaded continues at once. Others wait until the adapter is read, and if the cache is full of
adapters in use, until enough of those are idle. Adapters are loaded in the fair order of the sequences that wait for
them: least served tenant first, first come first served within a tenant.

While an adapter waits for room, sequences may still join loaded adapters. After MAX_WAIT_S the waiting adapter has
timed out: it is first in the order until it is loaded, and the adapters that must be evicted for it are draining, which
means that no sequence joins them any more. Called by the engine's thread only. Knows neither files nor memory.
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
from engine.scheduling.waiting import FairQueue

if TYPE_CHECKING:
    from engine.adapters.slot_pool import AdapterSize

MAX_WAIT_S = 1.0


@dataclass(frozen=True)
class LoadResult:
    """Result of loading an adapter.

    RUNNING: the adapter is loaded, with one reference that the receiver must release. OUT_OF_CAPACITY: the adapter can
    be served but there is no room now; `size` says how much it needs. Any other code ends the waiting sequences.
    """

    code: int
    size: AdapterSize | None = None


class AdapterStore(Protocol):
    """The interface of AdapterCache. An adapter with references is never evicted."""

    @property
    def sites(self) -> dict[str, tuple[int, int]]: ...
    def acquire(self, digest: str) -> int: ...
    def release(self, digest: str) -> bool: ...
    def load(self, adapter: LocalAdapter, may_place: bool) -> Future[LoadResult]: ...
    def has_room(self, sizes: Items[AdapterSize]) -> bool: ...
    def evictions_for(self, sizes: Items[AdapterSize]) -> Collection[str]: ...


@dataclass(eq=False)
class _Wanted:
    """An adapter that sequences wait for."""

    adapter: LocalAdapter
    since_s: float
    sequences: dict[int, Sequence] = field(default_factory=dict)
    size: AdapterSize | None = None  # known once the files were checked and there was no room
    loading: Future[LoadResult] | None = None


class AdapterQueue:
    """The sequences of one engine that wait for an adapter or use one."""

    def __init__(
        self, store: AdapterStore, counters: TenantCounters, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._counters, self._clock = store, counters, clock
        self._waiting = FairQueue(counters)
        self._wanted: dict[str, _Wanted] = {}  # by digest
        self._used: dict[int, str] = {}  # sequence id -> digest
        self._draining: Collection[str] = frozenset()  # digests
        self._timed_out: _Wanted | None = None
        self._is_changed = False  # since the order was last evaluated
        self._timeout_at_s = math.inf  # deadline of the first adapter without room

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def is_waiting(self, sequence: Sequence) -> bool:
        wanted = self._wanted.get(_digest_of(sequence))
        return wanted is not None and sequence.sequence_id in wanted.sequences

    def add(self, sequence: Sequence) -> None:
        """Set `sequence.adapter` to the handle of its adapter, valid until `release`.

        The handle stays 0 if the sequence must wait: then `take_ready` returns it later.
        """
        digest = _digest_of(sequence)
        if digest in self._wanted or digest in self._draining or not self._acquire(sequence):
            self._wait_for(sequence)

    def take_ready(self, timeout_s: float = 0.0) -> list[tuple[Sequence, int]]:
        """Return sequences that no longer wait: RUNNING with their handle, or the finish code that ends them.

        Waits up to `timeout_s` for the first.
        """
        ready = self._take()
        if timeout_s and not ready:
            wait(self._loading().values(), timeout_s, return_when="FIRST_COMPLETED")
            ready = self._take()
        return ready

    def take_yielded(self, queued: Callable[[], Items[Sequence]]) -> list[Sequence]:
        """Make `queued` sequences give up draining adapters for a timed-out one, and return these sequences.

        Only sequences that wait for a slot and whose tenant was served more than a tenant waiting for the timed-out
        adapter. They wait for their adapter again. A sequence does this at most once, so that it eventually runs.
        """
        if self._timed_out is None or not self._timed_out.sequences:
            return []
        served = self._counters.served
        least = min(float(served[each.tenant_index]) for each in self._timed_out.sequences.values())
        users = [each for each in queued() if _digest_of(each) in self._draining and not each.has_yielded_adapter]
        yielding = [each for each in users if served[each.tenant_index] > least]
        for sequence in yielding:
            self.release(sequence)
            sequence.adapter, sequence.has_yielded_adapter = 0, True
            self._wait_for(sequence)
        return yielding

    def release(self, sequence: Sequence) -> None:
        """Remove a sequence, whether it waits or uses its adapter."""
        if self.is_waiting(sequence):
            self._waiting.discard(sequence)
            self._stop_waiting(sequence)
            return
        digest = self._used.pop(sequence.sequence_id, None)
        if digest is not None and self._store.release(digest):
            self._is_changed = True

    # ── one sequence ──

    def _acquire(self, sequence: Sequence) -> bool:
        """Give the sequence its adapter if it is loaded."""
        digest = _digest_of(sequence)
        sequence.adapter = self._store.acquire(digest)
        if sequence.adapter:
            self._used[sequence.sequence_id] = digest
        return sequence.adapter > 0

    def _wait_for(self, sequence: Sequence) -> None:
        adapter = sequence.request.adapter
        assert adapter is not None, "only sequences with an adapter wait for one"
        digest = adapter.digest
        wanted = self._wanted.get(digest)
        if wanted is None:
            # While others wait for room, a newcomer's files are only checked, and it waits for its turn.
            may_place = digest not in self._draining and all(each.size is None for each in self._wanted.values())
            wanted = self._wanted[digest] = _Wanted(adapter, self._clock())
            wanted.loading = self._store.load(adapter, may_place=may_place)
        wanted.sequences[sequence.sequence_id] = sequence
        self._waiting.push(sequence)

    def _stop_waiting(self, sequence: Sequence) -> None:
        """Remove a waiting sequence. Loading that has begun continues."""
        digest = _digest_of(sequence)
        wanted = self._wanted[digest]
        del wanted.sequences[sequence.sequence_id]
        if not wanted.sequences and wanted.loading is None:
            del self._wanted[digest]
            self._is_changed = True

    # ── order of adapters ──

    def _loading(self) -> dict[str, Future[LoadResult]]:
        return {digest: each.loading for digest, each in self._wanted.items() if each.loading is not None}

    def _take(self) -> list[tuple[Sequence, int]]:
        ready: list[tuple[Sequence, int]] = []
        for digest, loading in self._loading().items():
            if loading.done():
                self._on_loaded(digest, loading.result(), ready)
        if self._is_changed or self._clock() >= self._timeout_at_s:
            self._is_changed = False
            self._load_next(ready)
        return ready

    def _on_loaded(self, digest: str, result: LoadResult, ready: list[tuple[Sequence, int]]) -> None:
        """Give a loaded adapter to its sequences, or let it wait for room."""
        wanted = self._wanted[digest]
        wanted.loading, self._is_changed = None, True
        if result.code == OUT_OF_CAPACITY and wanted.sequences:
            wanted.size = result.size
            return
        del self._wanted[digest]
        for sequence in wanted.sequences.values():
            self._waiting.discard(sequence)
            if result.code == RUNNING:
                self._acquire(sequence)
            ready.append((sequence, result.code))
        if result.code == RUNNING:
            self._store.release(digest)

    def _load_next(self, ready: list[tuple[Sequence, int]]) -> None:
        """Load waiting adapters in order, up to the first without room: none overtakes that one.

        Adapters behind it may only be joined if they are loaded and not draining.
        """
        placing = [each for each in self._wanted.values() if each.loading is not None and each.size is not None]
        in_order = self._waiting_for_room()
        self._drain_for([*placing, *in_order[:1]] if in_order[:1] == [self._timed_out] else placing)
        remaining = iter(in_order)
        blocked = next((each for each in remaining if not self._try_load(each, placing, ready)), None)
        self._timed_out, self._timeout_at_s = None, math.inf
        if blocked is not None and self._clock() >= blocked.since_s + MAX_WAIT_S:
            self._timed_out = blocked
            self._drain_for([*placing, blocked])
        elif blocked is not None:
            self._timeout_at_s = blocked.since_s + MAX_WAIT_S
        for wanted in remaining:
            self._join(wanted, ready)

    def _drain_for(self, placing: list[_Wanted]) -> None:
        """Drain the adapters that must be evicted for these, and no others."""
        self._draining = self._store.evictions_for(_sizes_of(placing)) if placing else frozenset()

    def _try_load(self, wanted: _Wanted, placing: list[_Wanted], ready: list[tuple[Sequence, int]]) -> bool:
        """Join the adapter or load it; return False if it has no room beside those in `placing`."""
        if wanted.adapter.digest in self._draining or self._join(wanted, ready):
            return True
        if not self._store.has_room(_sizes_of([*placing, wanted])):
            return False
        wanted.loading = self._store.load(wanted.adapter, may_place=True)
        placing.append(wanted)
        self._drain_for(placing)
        return True

    def _waiting_for_room(self) -> list[_Wanted]:
        """Return the adapters that wait for room, in order; a timed-out one first."""
        found: dict[str, _Wanted] = {}
        for sequence in self._waiting.in_order():
            digest = _digest_of(sequence)
            if self._wanted[digest].loading is None:
                found.setdefault(digest, self._wanted[digest])
        return sorted(found.values(), key=lambda each: each is not self._timed_out)

    def _join(self, wanted: _Wanted, ready: list[tuple[Sequence, int]]) -> bool:
        """Give a loaded adapter to all its waiting sequences; return False if it is not loaded or is draining."""
        if wanted.adapter.digest in self._draining:
            return False
        for sequence in wanted.sequences.values():
            if not self._acquire(sequence):
                return False
            self._waiting.discard(sequence)
            ready.append((sequence, RUNNING))
        del self._wanted[wanted.adapter.digest]
        return True


def _digest_of(sequence: Sequence) -> str:
    return sequence.request.adapter.digest if sequence.request.adapter is not None else ""


def _sizes_of(many: Items[_Wanted]) -> list[AdapterSize]:
    return [each.size for each in many if each.size is not None]
