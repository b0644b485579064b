"""The scheduler keeps budgets, starves no sequence, bounds preemptions, and serves equal tenants equally."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.scheduling.scheduler import MAX_PREEMPTIONS
from tests.engine.driver import NAMESPACE, OTHER_NAMESPACE, Driver
from tests.fakes.drafter import Oracle
from tests.fakes.runner import FakeRunner, expected_tokens


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 900, length).tolist()


def chunks(driver: Driver) -> dict[int, int]:
    """Run the next step; return the tokens computed for each sequence."""
    before = dict(driver.runner.forward_tokens_of)
    driver.step()
    return {key: n - before.get(key, 0) for key, n in driver.runner.forward_tokens_of.items() if n > before.get(key, 0)}


# ── the budget ──


def test_decode_rows_come_first_and_prefill_takes_the_rest():
    driver = Driver(max_step_tokens=40)
    decoding = [driver.add(prompt_of(4, seed), max_tokens=50, ignore_eos=True) for seed in range(5)]
    driver.step()
    long = driver.add(prompt_of(100), max_tokens=2)
    assert chunks(driver) == dict.fromkeys(decoding, 1) | {long: 35}


def test_prompt_is_prefilled_in_chunks_of_the_remaining_budget():
    driver = Driver(max_step_tokens=30)
    first, second = driver.add(prompt_of(50), max_tokens=2), driver.add(prompt_of(40, 1), max_tokens=2)
    assert chunks(driver) == {first: 30}
    assert chunks(driver) == {first: 20, second: 10}
    assert chunks(driver) == {first: 1, second: 29}


def test_prefill_budget_is_divided_equally_between_tenants():
    driver = Driver(max_step_tokens=60, num_blocks=128)
    crowd = [driver.add(prompt_of(200, seed), max_tokens=2, tenant=1) for seed in range(4)]
    single = driver.add(prompt_of(200, 9), max_tokens=2, tenant=2)
    short = driver.add(prompt_of(10, 10), max_tokens=2, tenant=3)
    assert chunks(driver) == {short: 10, crowd[0]: 25, single: 25}


def test_prefill_proceeds_however_many_rows_decode():
    driver = Driver(max_step_tokens=8, max_sequences=9)
    for seed in range(8):
        driver.add([seed + 1], max_tokens=200, ignore_eos=True)
    driver.step()
    newcomer = driver.add(prompt_of(10, 9), max_tokens=2)
    steps = 0
    while not driver.tokens[newcomer]:
        driver.step()
        steps += 1
    assert steps <= 2 * 10


def test_budget_of_one_token_serves_every_sequence():
    driver = Driver(max_step_tokens=1, max_sequences=5)
    ids = [driver.add(prompt_of(3, seed), max_tokens=10, ignore_eos=True) for seed in range(5)]
    for _ in range(5 * 12):
        assert len(chunks(driver)) == 1
    assert [driver.finishes.get(each) for each in ids] == ["length"] * 5


# ── admission ──


def test_prompt_starts_only_when_all_of_it_fits():
    driver = Driver(num_blocks=16)
    holder = driver.add(prompt_of(150), max_tokens=10, ignore_eos=True)
    driver.step()
    big, small = driver.add(prompt_of(120, 1), max_tokens=1), driver.add(prompt_of(5, 2), max_tokens=1)
    driver.step()
    assert driver.engine.status().num_waiting == 2, "a smaller one does not pass by"
    driver.run()
    assert list(driver.finishes) == [holder, big, small]


def test_admission_leaves_blocks_for_running_sequences_to_grow():
    driver = Driver(num_blocks=10)
    for seed in range(9):
        driver.add(prompt_of(16, seed), max_tokens=20, ignore_eos=True)
    driver.step()
    assert driver.engine.status().num_running == 5
    for _ in range(15):
        driver.step()
    assert driver.engine.status().num_preemptions == 0


def test_backlogged_tenants_are_served_equally_within_ten_percent():
    driver = Driver(max_sequences=6, max_step_tokens=64)
    rng = random.Random(1)
    for number in range(400):
        tenant = 1 if number < 300 else 2  # the second arrives behind a queue of three hundred
        driver.add(prompt_of(rng.randint(5, 60), number), max_tokens=rng.randint(5, 40), tenant=tenant, ignore_eos=True)
    served = {1: 0, 2: 0}
    waiting = driver.engine.scheduler.waiting
    while waiting.find_next(skipped={0}) and waiting.find_next(skipped={1}):  # both tenants wait
        report = driver.step()
        for sequence_id in report.sequence_ids.tolist():
            served[1 if sequence_id <= 300 else 2] += 1
    assert min(served.values()) > 500
    assert 0.9 < served[1] / served[2] < 1.1


def test_light_tenant_does_not_wait_for_a_heavy_tenants_queue():
    driver = Driver(max_sequences=4, max_step_tokens=32)
    for number in range(100):
        driver.add(prompt_of(30, number), max_tokens=20, tenant=1, ignore_eos=True)
    for _ in range(10):
        driver.step()
    light = driver.add(prompt_of(30, 999), max_tokens=5, tenant=2)
    steps = 0
    while not driver.tokens[light]:
        driver.step()
        steps += 1
    assert steps < 40  # at most one sequence's whole life; the queue would be hundreds


# ── preemption ──


def test_preemption_chooses_the_sequence_with_the_least_computed_tokens():
    driver = Driver(num_blocks=13, max_sequences=3, is_prefix_cache_enabled=False)
    old = driver.add(prompt_of(40), max_tokens=60, ignore_eos=True)
    for _ in range(20):
        driver.step()
    mid, new = (driver.add(prompt_of(40, seed), max_tokens=60, ignore_eos=True) for seed in (1, 2))
    while not driver.engine.status().num_preemptions:
        driver.step()
    assert list(driver.engine.scheduler.preempted) == [new]
    driver.run()
    assert list(driver.finishes) == [old, mid, new]


def test_preemption_chooses_the_newest_of_equal_sequences():
    driver = Driver(num_blocks=12, max_sequences=4, is_prefix_cache_enabled=False)
    ids = [driver.add(prompt_of(40, seed), max_tokens=60, ignore_eos=True) for seed in range(3)]
    while not driver.engine.scheduler.preempted:
        work = driver.engine.table.num_computed[driver.engine.scheduler.running].copy()
        driver.step()
    assert np.count_nonzero(work == work.min()) > 1, "several had the least to lose"
    assert list(driver.engine.scheduler.preempted) == ids[-1:]


def test_often_preempted_sequence_starts_only_with_blocks_for_its_whole_completion():
    driver = Driver(num_blocks=20, max_sequences=4)
    protected = driver.add(prompt_of(40), max_tokens=200, ignore_eos=True)
    sequence = driver.engine.sequences.get(protected)
    sequence.num_preemptions = MAX_PREEMPTIONS
    others = [driver.add(prompt_of(20, seed), max_tokens=150, ignore_eos=True) for seed in range(3)]
    driver.step()
    assert driver.engine.table.is_protected[sequence.slot]
    driver.run()
    assert sequence.num_preemptions == MAX_PREEMPTIONS
    assert driver.tokens[protected] == expected_tokens(prompt_of(40), 200, ignore_end=True)
    assert all(len(driver.tokens[each]) == 150 for each in others)
    assert driver.engine.scheduler.sequence_blocks.num_reserved == 0


def test_preempted_sequences_start_before_new_ones():
    driver = Driver(num_blocks=12, max_sequences=4)
    ids = [driver.add(prompt_of(40, seed), max_tokens=60, ignore_eos=True) for seed in range(3)]
    while not driver.engine.scheduler.preempted:
        driver.step()
    newcomer = driver.add([1, 2], max_tokens=1)
    while driver.engine.scheduler.preempted:
        assert newcomer not in driver.finishes
        driver.step()
    driver.run()
    assert set(driver.finishes) == {*ids, newcomer}


# ── anything may happen ──


class Traffic(RuleBasedStateMachine):
    """Sequences arrive, run and end at random, also during a chunked prefill or while preempted, while the pool
    shrinks and grows and rows fail. Each ends exactly once, with the tokens it would get alone. The driver checks
    its invariants after every event, and the fake runner detects reads of unwritten KV or of another namespace."""

    @initialize(
        num_blocks=st.integers(4, 30),
        max_step_tokens=st.sampled_from([1, 3, 16, 17, 64]),
        max_sequences=st.integers(1, 8),
        is_cached=st.booleans(),
        has_drafts=st.booleans(),
    )
    def start(
        self, num_blocks: int, max_step_tokens: int, max_sequences: int, is_cached: bool, has_drafts: bool
    ) -> None:
        self.driver = Driver(
            drafter=Oracle() if has_drafts else None,
            num_blocks=num_blocks,
            max_step_tokens=max_step_tokens,
            max_sequences=max_sequences,
            max_waiting=12,
            is_prefix_cache_enabled=is_cached,
        )
        self.wanted: dict[int, list[int]] = {}
        self.aborted: set[int] = set()
        self.failing: set[int] = set()

    @rule(
        shared=st.integers(0, 70),
        own=st.integers(1, 40),
        seed=st.integers(0, 3),
        max_tokens=st.integers(1, 40),
        tenant=st.integers(1, 3),
        num_choices=st.integers(1, 3),
    )
    def arrive(self, shared: int, own: int, seed: int, max_tokens: int, tenant: int, num_choices: int) -> None:
        prompt = prompt_of(shared) + prompt_of(own, seed)
        namespace = (NAMESPACE, OTHER_NAMESPACE, b"p" * 32)[tenant - 1]
        limit = self.driver.engine.info.max_model_len
        wanted = expected_tokens(prompt, min(max_tokens, limit - len(prompt))) if len(prompt) < limit else []
        for _ in range(num_choices):
            choice = self.driver.add(prompt, max_tokens=max_tokens, tenant=tenant, namespace=namespace)
            self.wanted[choice] = wanted

    @rule(count=st.integers(1, 20))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.sampled_from(sorted(self.wanted)))
        self.aborted.add(sequence_id)
        self.driver.abort(sequence_id)

    @rule(data=st.data())
    def leave_in_prefill(self, data: st.DataObject) -> None:
        """Abort a sequence whose prompt is partly computed."""
        table, running = self.driver.engine.table, self.driver.engine.scheduler.running
        is_partial = (table.num_computed[running] > table.num_matched[running]) & (
            table.num_computed[running] < table.num_prompt[running]
        )
        if is_partial.any():
            sequence_id = data.draw(st.sampled_from(table.sequence_id[running[is_partial]].tolist()))
            self.aborted.add(sequence_id)
            self.driver.abort(sequence_id)

    @rule(data=st.data())
    def leave_while_preempted(self, data: st.DataObject) -> None:
        preempted = sorted(self.driver.engine.scheduler.preempted)
        if preempted:
            sequence_id = data.draw(st.sampled_from(preempted))
            self.aborted.add(sequence_id)
            self.driver.abort(sequence_id)

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """Make a row fail from now on: its blocks are unregistered."""
        sequence_id = data.draw(st.sampled_from(sorted(self.wanted)))
        self.failing.add(sequence_id)
        self.driver.runner.failing_ids.add(sequence_id)

    @invariant()
    def every_decoding_sequence_gets_a_turn(self) -> None:
        """Only decoding rows are checked: prefill of a tenant is first come, first served."""
        if hasattr(self, "driver"):
            scheduler, table = self.driver.engine.scheduler, self.driver.engine.table
            running = scheduler.running
            decoding = running[table.length[running] - table.num_computed[running] == 1]
            waited = scheduler.num_steps - table.last_step[decoding]
            assert (waited <= 2 * self.driver.config.max_sequences).all(), waited

    @rule(count=st.integers(1, 20))
    def shrink(self, count: int) -> None:
        self.driver.borrow_blocks(count)

    @rule()
    def grow(self) -> None:
        self.driver.return_blocks()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.return_blocks()
        self.driver.run()
        check_endings(self.driver, self.wanted, self.aborted, self.failing)


def check_endings(
    driver: Driver, wanted: dict[int, list[int]], aborted: set[int], failing: set[int] = frozenset()
) -> None:
    """Check that every sequence ended with the tokens it would get alone and that nothing leaked."""
    assert set(driver.finishes) == set(wanted)
    for sequence_id, finish in driver.finishes.items():
        tokens = driver.tokens[sequence_id]
        if finish in ("stop", "length"):
            assert tokens == wanted[sequence_id]
        elif finish == "aborted":
            assert sequence_id in aborted
            assert tokens == wanted[sequence_id][: len(tokens)]
        elif finish == "error":
            assert sequence_id in failing
            assert tokens == wanted[sequence_id][: len(tokens)]
        else:
            assert finish == ("out_of_capacity" if wanted[sequence_id] else "context_too_long")
            assert tokens == []
    scheduler = driver.engine.scheduler
    assert driver.engine.blocks.num_in_use == 0
    assert not scheduler.sequence_blocks._computing
    assert scheduler.sequence_blocks.num_reserved == 0
    assert not driver.engine.sequences
    assert scheduler.num_free_slots == driver.config.max_sequences


TestTraffic = Traffic.TestCase


@pytest.mark.parametrize(
    ("seed", "num_events"),
    [(0, 2000), (1, 2000), pytest.param(2, 100_000, marks=[pytest.mark.full, pytest.mark.timeout(1800)])],
)
def test_random_events_leak_no_blocks_or_slots(seed: int, num_events: int):
    rng = random.Random(seed)
    runner = FakeRunner(num_blocks=24, max_model_len=384)
    driver = Driver(runner, max_sequences=12, max_step_tokens=48, max_waiting=40)
    wanted: dict[int, list[int]] = {}
    aborted: set[int] = set()
    recent: deque[int] = deque(maxlen=30)
    for _ in range(num_events):
        event = rng.random()
        if event < 0.15:
            prompt = prompt_of(rng.choice([0, 32, 70])) + prompt_of(rng.randint(1, 90), rng.randint(0, 20))
            max_tokens, tenant = rng.randint(1, 200), rng.randint(1, 4)
            namespace = bytes([tenant]) * 32
            sequence_id = driver.add(prompt, max_tokens=max_tokens, tenant=tenant, namespace=namespace, ignore_eos=True)
            wanted[sequence_id] = expected_tokens(prompt, max_tokens, ignore_end=True)
            recent.append(sequence_id)
        elif event < 0.3 and recent:
            sequence_id = rng.choice(recent)
            aborted.add(sequence_id)
            driver.abort(sequence_id)
        else:
            driver.step()
    driver.run()
    assert len(wanted) > num_events // 10
    assert driver.engine.status().num_preemptions > 20
    check_endings(driver, wanted, aborted)
