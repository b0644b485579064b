"""The adapter queue: order of loading, draining and timeouts, with a store that loads when the test says so."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from engine.adapters.local_adapter import LocalAdapter
from engine.adapters.queue import MAX_WAIT_S, AdapterQueue, LoadResult
from engine.protocol.sampling import Sampling
from engine.report import BAD_ADAPTER, OUT_OF_CAPACITY, RUNNING
from engine.scheduling.fairness import TenantCounters
from engine.scheduling.sequence import Sequence, SequenceRequest

BAD, HUGE = "bad", "two"  # beginnings of digests: one that cannot be served, and those that take two places


def size_of(digest: str) -> Any:
    return 2 if digest.startswith(HUGE) else 1


@dataclass
class Store:
    """A store with `num_places` slots. Adapters are loaded when the test calls `work`."""

    num_places: int
    sites: dict[str, tuple[int, int]] = field(default_factory=dict)
    references: dict[str, int] = field(default_factory=dict)
    queue: list[tuple[str, bool, Future[LoadResult]]] = field(default_factory=list)

    def acquire(self, digest: str) -> int:
        if digest not in self.references:
            return 0
        self.references[digest] += 1
        return 1 + sum(map(ord, digest))

    def release(self, digest: str) -> bool:
        self.references[digest] -= 1
        assert self.references[digest] >= 0
        return not self.references[digest]

    def load(self, adapter: LocalAdapter, may_place: bool) -> Future[LoadResult]:
        assert not (may_place and adapter.digest in self.references), "it is here"
        assert adapter.digest not in [digest for digest, _, _ in self.queue], "it is being read"
        self.queue.append((adapter.digest, may_place, Future()))
        return self.queue[-1][2]

    def has_room(self, sizes: Any) -> bool:
        return sum(size_of(digest) for digest, num in self.references.items() if num) + sum(sizes) <= self.num_places

    def evictions_for(self, sizes: Any) -> set[str]:
        missing = sum(map(size_of, self.references)) + sum(sizes) - self.num_places
        evicted = set()
        for digest in sorted(self.references, key=self.references.__getitem__):
            if missing > 0:
                evicted.add(digest)
                missing -= size_of(digest)
        return evicted

    def work(self) -> list[str]:
        """Finish all pending loads; return their digests."""
        done, self.queue = self.queue, []
        for digest, may_place, future in done:
            if digest.startswith(BAD):
                future.set_result(LoadResult(BAD_ADAPTER))
            elif may_place and self.has_room([size_of(digest)]):
                while sum(map(size_of, self.references)) + size_of(digest) > self.num_places:
                    del self.references[next(each for each, num in self.references.items() if not num)]
                self.references[digest] = 1
                future.set_result(LoadResult(RUNNING))
            else:
                future.set_result(LoadResult(OUT_OF_CAPACITY, size_of(digest)))
        return [digest for digest, _, _ in done]


class QueueDriver:
    """A queue over a store, with a manual clock, that records which sequences got their adapter."""

    def __init__(self, num_places: int) -> None:
        self.store, self.counters, self.now_s = Store(num_places), TenantCounters(), 0.0
        self.queue = AdapterQueue(self.store, self.counters, lambda: self.now_s)
        self.codes: dict[int, int] = {}
        self.order: list[str] = []  # digests, as they were got
        self._next_id = 0

    def ask(self, digest: str, tenant: int = 1) -> Sequence:
        self._next_id += 1
        prompt = np.array([1], dtype=np.int32)
        request = SequenceRequest(self._next_id, prompt, Sampling(), b"n", tenant, adapter=LocalAdapter(digest, "/"))
        sequence = Sequence(request, self.counters.join(tenant), 9, (), prompt, 1)
        self.queue.add(sequence)
        if sequence.adapter:
            self._note(sequence, RUNNING)
        return sequence

    def settle(self, seconds: float = 0.0) -> list[str]:
        """Advance the clock and run until nothing changes. Return the digests that became available."""
        self.now_s += seconds
        before = len(self.order)
        while True:
            for sequence, code in self.queue.take_ready():
                self._note(sequence, code)
            if not self.store.work():
                return self.order[before:]

    def _note(self, sequence: Sequence, code: int) -> None:
        assert sequence.sequence_id not in self.codes
        assert (sequence.adapter > 0) == (code == RUNNING)
        self.codes[sequence.sequence_id] = code
        if sequence.request.adapter is not None and code == RUNNING:
            self.order.append(sequence.request.adapter.digest)

    def end(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self.queue.release(sequence)


def test_adapter_without_room_waits_for_the_first_idle_one():
    driver = QueueDriver(2)
    a, _b, c = (driver.ask(each) for each in "abc")
    assert driver.settle() == ["a", "b"]
    assert driver.queue.num_waiting == 1
    assert driver.queue.is_waiting(c)
    assert driver.settle(100.0) == [], "no sequence has ended"
    driver.end(a)
    assert driver.settle() == ["c"]
    assert sorted(driver.store.references) == ["b", "c"]
    driver.end(_b, c)
    assert (driver.queue.num_waiting, set(driver.store.references.values())) == (0, {0})


def test_last_reference_may_end_before_a_load_result_is_taken():
    driver = QueueDriver(1)
    a = driver.ask("a")
    driver.settle()
    b = driver.ask("b")
    driver.store.work()  # there is no room for b
    driver.end(a)  # before the queue has seen that
    assert driver.settle() == ["b"]
    driver.end(b)


def test_adapter_is_not_read_again_without_a_change():
    driver = QueueDriver(1)
    driver.ask("a")
    driver.ask("b")
    driver.settle()
    for _ in range(5):
        driver.settle(MAX_WAIT_S)
        assert driver.store.work() == []


def test_loaded_adapters_can_be_joined_until_a_waiting_one_times_out():
    driver = QueueDriver(2)
    held = [driver.ask(each) for each in ("a", "a", "b")]
    driver.settle()
    waiting = driver.ask("c")
    assert driver.settle(0.9 * MAX_WAIT_S) == []
    held.append(driver.ask("a"))
    assert held[-1].adapter, "there is time left"
    assert driver.settle(0.2 * MAX_WAIT_S) == []
    later = driver.ask("b")
    assert not later.adapter, "b leaves for c: fewest use it"
    assert driver.ask("a").adapter, "a is not draining"
    assert driver.settle() == []
    driver.end(held[2])
    assert driver.settle() == ["c"]
    assert driver.queue.is_waiting(later)
    driver.end(waiting)
    assert driver.settle() == ["b"]


def test_joining_sequences_cannot_starve_a_large_adapter():
    """A large adapter needs two slots while other sequences keep wanting one of them."""
    driver = QueueDriver(2)
    open_ = [driver.ask("a"), driver.ask("b")]
    driver.settle()
    large = driver.ask("two")
    driver.settle(1.1 * MAX_WAIT_S)
    for number in range(20):
        open_.append(driver.ask("ab"[number % 2]))
        driver.settle(0.01)
        for each in [each for each in open_ if each.adapter][:1]:
            driver.end(each)
            open_.remove(each)
    assert large.adapter
    driver.end(large)
    while open_:
        driver.settle()
        driver.end(*[each for each in open_ if each.adapter])
        open_ = [each for each in open_ if not each.adapter]


def test_small_adapter_does_not_overtake_a_large_one():
    driver = QueueDriver(2)
    a, b = driver.ask("a"), driver.ask("b")
    driver.settle()
    large = driver.ask("two")
    driver.settle()
    driver.end(a)
    small = driver.ask("c")
    assert driver.settle() == [], "c would fit, but waits behind a larger adapter"
    driver.end(large)
    assert driver.settle() == ["c"]
    driver.end(b, small)


def test_queued_sequence_yields_a_draining_adapter_after_a_timeout():
    driver = QueueDriver(1)
    runs, queued = driver.ask("a"), [driver.ask("a") for _ in range(5)]
    driver.settle()
    other = driver.ask("b", tenant=2)
    driver.settle(0.9 * MAX_WAIT_S)
    driver.counters.charge_prompt(runs.tenant_index, 100, 0)
    assert driver.queue.take_yielded(lambda: queued) == []
    driver.settle(0.2 * MAX_WAIT_S)
    assert driver.queue.take_yielded(lambda: queued) == queued
    assert driver.store.references == {"a": 1}
    assert {each.adapter for each in queued} == {0}
    assert driver.settle() == []
    driver.end(runs)
    for each in queued:
        del driver.codes[each.sequence_id]
    assert driver.settle() == ["b"]
    assert driver.settle(2 * MAX_WAIT_S) == []
    assert driver.queue.take_yielded(lambda: [other]) == [], "the less served tenant keeps its adapter"
    driver.end(other)
    assert driver.settle() == ["a"] * 5
    driver.end(*queued)


def test_tenant_with_many_adapters_does_not_starve_another():
    driver = QueueDriver(1)
    many = [driver.ask(f"a{number}", tenant=1) for number in range(20)]
    other = driver.ask("b", tenant=2)
    assert driver.settle() == ["a0"]
    driver.counters.charge_prompt(many[0].tenant_index, 100, 0)
    driver.end(many[0])
    assert driver.settle() == ["b"]
    driver.counters.charge_prompt(other.tenant_index, 200, 0)
    driver.end(other)
    assert driver.settle() == ["a1"], "first come, first served within a tenant"


def test_draining_adapter_can_be_joined_when_its_slot_is_not_needed_any_more():
    driver = QueueDriver(1)
    first = driver.ask("a")
    driver.settle()
    waiting = driver.ask("b")
    driver.settle(2 * MAX_WAIT_S)
    driver.end(waiting)
    second = driver.ask("a")
    assert driver.settle() == ["a"]
    driver.end(first, second)
    assert driver.store.references == {"a": 0}


def test_bad_adapter_is_rejected_while_others_wait():
    driver = QueueDriver(1)
    driver.ask("a")
    driver.ask("b")
    driver.settle()
    bad = driver.ask("bad")
    driver.settle()
    assert driver.codes[bad.sequence_id] == BAD_ADAPTER
    assert driver.queue.num_waiting == 1


def test_released_waiting_sequence_leaves_no_state():
    driver = QueueDriver(1)
    a = driver.ask("a")
    driver.settle()
    gone, stays, reading = driver.ask("b"), driver.ask("c"), driver.ask("d")
    driver.end(reading)  # while its adapter is read
    driver.settle()
    driver.end(gone)
    driver.end(a)
    assert driver.settle() == ["c"]
    driver.end(stays)
    driver.settle()
    assert driver.queue.num_waiting == 0
    assert not any(driver.store.references.values())


@pytest.mark.parametrize("num_places", [2, 3, 7])
def test_every_sequence_gets_its_adapter(num_places: int):
    """Random arrivals and departures for 12 adapters of two sizes; then all remaining sequences are served."""
    rng = np.random.default_rng(num_places)
    driver, open_ = QueueDriver(num_places), list[Sequence]()
    names = [f"{HUGE if number % 4 == 0 else 'one'}{number}" for number in range(12)]
    for _ in range(400):
        if rng.random() < 0.5 or not open_:
            open_.append(driver.ask(names[rng.integers(12)], tenant=int(rng.integers(3))))
        else:
            driver.end(open_.pop(int(rng.integers(len(open_)))))  # the sequence ends or is aborted
        if rng.random() < 0.7:
            driver.settle(float(rng.random()))
    for _ in range(200):
        driver.settle()
        driver.end(*[each for each in open_ if each.adapter])
        open_ = [each for each in open_ if not each.adapter]
    assert not open_
    assert set(driver.codes.values()) == {RUNNING}
    assert set(driver.store.references.values()) == {0}
