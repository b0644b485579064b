"""The waiting queue: first come, first served within a tenant, least served tenant first, and bounded."""

from __future__ import annotations

import numpy as np

from engine.protocol.sampling import Sampling
from engine.scheduling.fairness import TenantCounters
from engine.scheduling.sequence import Sequence, SequenceRequest
from engine.scheduling.waiting import WaitingQueue


class Queue:
    """A waiting queue and a factory of sequences."""

    def __init__(self, max_waiting: int) -> None:
        self.counters = TenantCounters()
        self.queue = WaitingQueue(self.counters, max_waiting)
        self.num_made = 0

    def make(self, tenant: int) -> Sequence:
        self.num_made += 1
        prompt = np.ones(4, dtype=np.int32)
        request = SequenceRequest(self.num_made, prompt, Sampling(), b"n", tenant)
        return Sequence(request, self.counters.join(tenant), 8, (), prompt, 0)

    def push(self, tenant: int, num_free_slots: int = 0) -> tuple[Sequence, Sequence | None]:
        """Reserve and push a new sequence; return it and the sequence that was dropped."""
        sequence = self.make(tenant)
        refused = self.queue.reserve(sequence, num_free_slots)
        if refused is not sequence:
            self.queue.push(sequence)
        return sequence, refused

    def enter(self, tenant: int) -> tuple[Sequence, Sequence | None]:
        """Reserve a new sequence without pushing it."""
        sequence = self.make(tenant)
        return sequence, self.queue.reserve(sequence)


def test_sequences_of_a_tenant_are_first_come_first_served():
    made = Queue(10)
    sequences = [made.push(1)[0] for _ in range(4)]
    out = []
    while (first := made.queue.find_next()) is not None:
        out.append(first)
        made.queue.remove(first)
    assert out == sequences


def test_least_served_tenant_is_next_unless_skipped():
    made = Queue(10)
    heavy, light = made.push(1)[0], made.push(2)[0]
    made.counters.charge_prompt(heavy.tenant_index, 1000, 0)
    assert made.queue.find_next() is light
    assert made.queue.find_next({light.tenant_index}) is heavy
    assert made.queue.find_next({light.tenant_index, heavy.tenant_index}) is None


def test_full_queue_rejects_the_tenant_that_fills_it():
    made = Queue(3)
    for _ in range(3):
        assert made.push(1)[1] is None
    newcomer, refused = made.push(1)
    assert refused is newcomer
    assert len(made.queue) == 3


def test_full_queue_drops_the_newest_of_the_largest_tenant_for_a_smaller_one():
    made = Queue(4)
    crowd = [made.push(1)[0] for _ in range(4)]
    assert made.push(2)[1] is crowd[3]
    assert made.push(2)[1] is crowd[2]
    newcomer, refused = made.push(2)
    assert refused is newcomer
    assert len(made.queue) == 4


def test_queue_of_size_zero_rejects_every_sequence():
    made = Queue(0)
    newcomer, refused = made.push(1)
    assert refused is newcomer


def test_sequences_with_a_free_slot_do_not_count_towards_max_waiting():
    made = Queue(1)
    refused = [made.push(1, num_free_slots=2)[1] for _ in range(4)]
    assert refused[:3] == [None] * 3
    assert refused[3] is not None


def test_reserved_sequence_counts_but_is_not_next_until_pushed():
    made = Queue(2)
    other, refused = made.enter(1)
    assert refused is None
    assert (made.queue.find_next(), len(made.queue), made.queue.num_entries) == (None, 0, 1)
    first = made.push(1)[0]
    newcomer, refused = made.push(1)
    assert refused is newcomer, "both waiting slots are occupied"
    made.queue.push(other)
    assert made.queue.in_order() == [first, other]
    made.queue.discard(other)  # it waits for something else again, and keeps its place
    assert (made.queue.in_order(), made.queue.num_entries) == ([first], 2)
    made.queue.remove(other)
    made.queue.remove(first)
    assert (made.queue.num_entries, made.queue.find_next()) == (0, None)


def test_reserved_sequence_can_be_dropped_for_a_tenant_with_fewer():
    made = Queue(3)
    first, second, third = made.push(1)[0], made.enter(1)[0], made.enter(1)[0]
    newcomer, refused = made.enter(2)
    assert refused is third
    made.queue.push(second)
    made.queue.push(newcomer)
    assert made.queue.in_order() == [first, newcomer, second]
