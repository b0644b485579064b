"""The waiting queue: first come first served within a tenant, least served first between them, and bounded."""

from __future__ import annotations

import numpy as np

from engine.protocol.sampling import Sampling
from engine.scheduling.fairness import TenantCounters
from engine.scheduling.sequence import Sequence, SequenceRequest
from engine.scheduling.waiting import WaitingQueue


class Queue:
    """A queue and a way to make sequences for it."""

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
        """The new sequence, and the one that found no place."""
        sequence = self.make(tenant)
        refused = self.queue.reserve(sequence, num_free_slots)
        if refused is not sequence:
            self.queue.push(sequence)
        return sequence, refused

    def enter(self, tenant: int) -> tuple[Sequence, Sequence | None]:
        """The same of one that waits for something else before."""
        sequence = self.make(tenant)
        return sequence, self.queue.reserve(sequence)


def test_a_tenant_s_sequences_come_out_in_the_order_they_came_in():
    made = Queue(10)
    sequences = [made.push(1)[0] for _ in range(4)]
    out = []
    while (first := made.queue.find_next()) is not None:
        out.append(first)
        made.queue.remove(first)
    assert out == sequences


def test_the_least_served_tenant_comes_first_and_skipped_ones_do_not_come_at_all():
    made = Queue(10)
    heavy, light = made.push(1)[0], made.push(2)[0]
    made.counters.charge_prompt(heavy.tenant_index, 1000, 0)
    assert made.queue.find_next() is light
    assert made.queue.find_next({light.tenant_index}) is heavy
    assert made.queue.find_next({light.tenant_index, heavy.tenant_index}) is None


def test_a_full_queue_refuses_the_newcomer_of_the_tenant_that_fills_it():
    made = Queue(3)
    for _ in range(3):
        assert made.push(1)[1] is None
    newcomer, refused = made.push(1)
    assert refused is newcomer
    assert len(made.queue) == 3


def test_a_full_queue_makes_room_for_a_tenant_with_fewer_waiting_until_they_are_level():
    made = Queue(4)
    crowd = [made.push(1)[0] for _ in range(4)]
    assert made.push(2)[1] is crowd[3]
    assert made.push(2)[1] is crowd[2]
    newcomer, refused = made.push(2)
    assert refused is newcomer
    assert len(made.queue) == 4


def test_a_queue_for_nobody_refuses_everybody():
    made = Queue(0)
    newcomer, refused = made.push(1)
    assert refused is newcomer


def test_those_for_whom_a_slot_is_free_do_not_count_as_waiting():
    made = Queue(1)
    refused = [made.push(1, num_free_slots=2)[1] for _ in range(4)]
    assert refused[:3] == [None] * 3
    assert refused[3] is not None


def test_who_waits_for_something_else_has_a_place_and_no_turn_until_it_joins():
    made = Queue(2)
    other, refused = made.enter(1)
    assert refused is None
    assert (made.queue.find_next(), len(made.queue), made.queue.num_entries) == (None, 0, 1)
    first = made.push(1)[0]
    newcomer, refused = made.push(1)
    assert refused is newcomer, "both places are taken"
    made.queue.push(other)
    assert made.queue.in_order() == [first, other]
    made.queue.discard(other)  # it waits for something else again, and keeps its place
    assert (made.queue.in_order(), made.queue.num_entries) == ([first], 2)
    made.queue.remove(other)
    made.queue.remove(first)
    assert (made.queue.num_entries, made.queue._entries, made.queue._queues) == (0, {}, {})


def test_who_waits_for_something_else_makes_room_for_a_tenant_with_fewer_like_any_other():
    made = Queue(3)
    first, second, third = made.push(1)[0], made.enter(1)[0], made.enter(1)[0]
    newcomer, refused = made.enter(2)
    assert refused is third
    made.queue.push(second)
    made.queue.push(newcomer)
    assert made.queue.in_order() == [first, newcomer, second]
