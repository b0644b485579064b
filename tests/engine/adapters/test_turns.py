"""The adapter queue under random arrivals and departures: every sequence gets its adapter and nothing leaks."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from engine.adapters.local_adapter import LocalAdapter
from engine.scheduling.sequence import Sequence
from tests.engine.adapters.test_queue import HUGE, QueueDriver, Store, size_of
from tests.engine.driver import Driver
from tests.fakes.runner import FakeRunner

NUM_SLOTS = 2
ADAPTERS = ["a", "b", "c", "d", f"{HUGE}1", f"{HUGE}2"]  # the last two take two places each

Arrival = tuple[str, int, int]  # an adapter, a tenant, and how many rounds it will run


class SimulatedEngine(QueueDriver):
    """A queue with slots behind it. A round lasts 0.4 s; running sequences are charged."""

    def __init__(self, num_places: int) -> None:
        super().__init__(num_places)
        self.rounds_left: dict[int, int] = {}
        self.queued: list[Sequence] = []
        self.running: list[Sequence] = []
        self.open: list[Sequence] = []

    def arrive(self, arrival: Arrival) -> Sequence:
        sequence = self.ask(arrival[0], arrival[1])
        self.rounds_left[sequence.sequence_id] = arrival[2]
        self.open.append(sequence)
        self._find_queued()
        return sequence

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence in any state."""
        self.end(sequence)
        self.counters.leave(sequence.tenant_index)
        for line in (self.open, self.queued, self.running):
            if sequence in line:
                line.remove(sequence)

    def round(self) -> None:
        for sequence in list(self.running):
            self.counters.charge_prompt(sequence.tenant_index, 10, 0)
            self.rounds_left[sequence.sequence_id] -= 1
            if self.rounds_left[sequence.sequence_id] <= 0:
                self.leave(sequence)
        self.settle(0.4)
        self._find_queued()
        for sequence in self.queue.take_yielded(lambda: self.queued):
            self.queued.remove(sequence)
            del self.codes[sequence.sequence_id]
        while self.queued and len(self.running) < NUM_SLOTS:
            served = self.counters.served
            first = min(self.queued, key=lambda each: (served[each.tenant_index], each.sequence_id))
            self.queued.remove(first)
            self.running.append(first)
        self.check()

    def _find_queued(self) -> None:
        known = {each.sequence_id for each in (*self.queued, *self.running)}
        self.queued += [each for each in self.open if each.adapter and each.sequence_id not in known]

    def check(self) -> None:
        """Check the invariants."""
        here = self.store.references
        assert sum(map(size_of, here)) <= self.store.num_places
        holding = [each for each in self.open if each.adapter]
        assert self.queue.num_waiting == sum(self.queue.is_waiting(each) for each in self.open)
        assert all(bool(each.adapter) != self.queue.is_waiting(each) for each in self.open)
        assert sum(here.values()) == len(holding)


arrivals = st.tuples(st.sampled_from(ADAPTERS), st.integers(0, 2), st.integers(1, 4))
# Somebody comes, the one of that number leaves, or (None) a round passes.
event_lists = st.lists(arrivals | st.integers(0, 20) | st.none(), max_size=60)


@given(st.integers(2, 4), event_lists)
def test_random_arrivals_and_departures_leak_no_slot_and_serve_every_sequence(
    num_places: int, events: list[Arrival | int | None]
) -> None:
    simulation = SimulatedEngine(num_places)
    for each in events:
        if each is None:
            simulation.round()
        elif isinstance(each, tuple):
            simulation.arrive(each)
        elif simulation.open:
            simulation.leave(simulation.open[each % len(simulation.open)])
    for _ in range(20 + 6 * len(simulation.open)):
        if not simulation.open:
            break
        simulation.round()
    assert not simulation.open, "a sequence waits forever"
    simulation.settle()
    assert not any(simulation.store.references.values())
    assert simulation.queue.num_waiting == 0


# Another tenant's calls came before b as the less served one's, and joined the adapter that was to leave for it.
@example(2, [("b", 1, 1)], [("a", 0, 1), ("a", 1, 2), ("c", 1, 2), ("c", 0, 3)])
@given(st.integers(2, 3), st.lists(arrivals, min_size=1, max_size=6), st.lists(arrivals, min_size=1, max_size=8))
def test_no_adapter_starves_under_continuous_arrivals(
    num_places: int, waiting: list[Arrival], others: list[Arrival]
) -> None:
    """Another sequence arrives in every round, and all slots are always used."""
    simulation = SimulatedEngine(num_places)
    for each in others:
        simulation.arrive(each)
    simulation.round()
    first = {simulation.arrive(each).sequence_id for each in waiting}
    for number in range(200):
        if first.isdisjoint(each.sequence_id for each in simulation.open):
            return
        if len(simulation.open) < 12:
            simulation.arrive(others[number % len(others)])
        simulation.round()
    raise AssertionError("a sequence that arrived early still waits")


def test_sequence_that_waited_for_its_adapter_is_not_dropped_from_the_queue() -> None:
    """Later sequences fill the waiting queue meanwhile; the one too many is rejected when it arrives."""
    runner = FakeRunner(num_blocks=64)
    store = Store(2)
    runner.adapters = store  # type: ignore[attr-defined]
    driver = Driver(runner, max_sequences=1, max_waiting=2)
    tuned = driver.add([1, 2, 3], max_tokens=2, adapter=LocalAdapter("a", "/"))
    plain = [driver.add([1, 2, number], max_tokens=2) for number in range(3)]
    assert driver.engine.status().num_waiting == 3
    while driver.engine.has_work:
        store.work()
        driver.step()
    ends = {number: driver.finishes[number] for number in (tuned, *plain)}
    assert ends == {tuned: "length", plain[0]: "length", plain[1]: "length", plain[2]: "out_of_capacity"}
    assert driver.engine.scheduler.waiting.num_entries == 0
    assert store.references == {"a": 0}
