"""One step ahead: tokens, finish reasons and usage equal those of the synchronous loop. Events such as aborts and
preemptions occur between the launch of a step and the collection of its output."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest

from engine import postprocess
from engine.launched_step import LaunchedStep
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_budget import ScheduledStep
from tests.engine.driver import Driver
from tests.engine.scheduling.test_scheduler import check_endings, prompt_of
from tests.fakes.ahead_runner import AheadRunner
from tests.fakes.drafter import Oracle
from tests.fakes.runner import END_TOKEN, expected_tokens


def new_driver(num_blocks: int = 24, **settings: object) -> Driver:
    runner = AheadRunner(num_slots=12, num_blocks=num_blocks, max_model_len=384)
    return Driver(runner, **({"max_sequences": 12, "max_step_tokens": 48, "max_waiting": 40} | settings))


def run_events(driver: Driver, rng: random.Random, num_events: int, *, can_wait: bool = False) -> None:
    """Add, abort and step at random, then run to the end and check every result.

    With `can_wait` some sequences need their tokens on the host, so that steps run synchronously.
    """
    wanted: dict[int, list[int]] = {}
    aborted: set[int] = set()
    failing: set[int] = set()
    recent: deque[int] = deque(maxlen=30)
    for _ in range(num_events):
        event = rng.random()
        if event < 0.15:
            prompt = prompt_of(rng.choice([0, 32, 70])) + prompt_of(rng.randint(1, 90), rng.randint(0, 20))
            max_tokens, tenant, ignores_end = rng.randint(1, 200), rng.randint(1, 4), rng.random() < 0.5
            expected = expected_tokens(prompt, max_tokens, ignore_end=True)
            # A random token of the completion ends it, so that many rows end while their next step is launched.
            stops = () if ignores_end else (rng.choice(expected),)
            ends = [expected.index(stop) for stop in (*stops, END_TOKEN) if not ignores_end and stop in expected]
            sequence_id = driver.add(
                prompt,
                max_tokens=max_tokens,
                tenant=tenant,
                namespace=bytes([tenant]) * 32,
                ignore_eos=ignores_end,
                stop_token_ids=stops,
                is_ephemeral=rng.random() < 0.2,
                repetition_penalty=1.1 if can_wait and rng.random() < 0.05 else 1.0,
            )
            wanted[sequence_id] = expected[: min(ends) + 1] if ends else expected
            recent.append(sequence_id)
        elif event < 0.27 and recent:
            sequence_id = rng.choice(recent)
            aborted.add(sequence_id)
            driver.abort(sequence_id)
        elif event < 0.28 and recent:
            failing.add(rng.choice(recent))
            driver.runner.failing_ids |= failing
        elif event < 0.3:
            driver.borrow_blocks(rng.randint(1, 6))
        elif event < 0.35:
            driver.return_blocks()
        else:
            driver.step()
    driver.return_blocks()
    driver.run()
    assert len(wanted) > num_events // 10
    check_endings(driver, wanted, aborted, failing)


@pytest.mark.parametrize(
    ("seed", "num_events"),
    [(0, 2000), (1, 2000), pytest.param(2, 100_000, marks=[pytest.mark.full, pytest.mark.timeout(1800)])],
)
def test_random_events_give_the_tokens_of_the_synchronous_loop(seed: int, num_events: int) -> None:
    driver = new_driver()
    run_events(driver, random.Random(seed), num_events)
    assert driver.engine.status().num_preemptions > 20
    assert driver.engine.postprocessor.num_dropped_rows > num_events // 200
    assert driver.runner.num_fed_on_device > num_events // 2
    assert driver.runner.most_queued == 2
    assert not driver.engine.num_synchronous


@pytest.mark.parametrize("seed", [4, 5])
def test_steps_that_need_tokens_on_the_host_run_synchronously(seed: int) -> None:
    driver = new_driver()
    run_events(driver, random.Random(seed), 2000, can_wait=True)
    assert driver.engine.num_synchronous["penalties"] > 20
    assert driver.runner.num_fed_on_device > 100


def test_speculation_runs_synchronously_with_equal_tokens() -> None:
    driver = new_driver(drafter=Oracle())
    run_events(driver, random.Random(6), 1000)
    assert driver.engine.num_synchronous["speculation"] > 20
    assert driver.runner.most_queued == 1


def test_the_first_token_is_reported_before_the_second_step_is_collected() -> None:
    driver = new_driver()
    sequence_id = driver.add(prompt_of(9), max_tokens=3, ignore_eos=True)
    driver.step()
    assert len(driver.tokens[sequence_id]) == 1
    assert driver.engine.has_work


def test_a_row_at_its_length_limit_is_not_launched_again() -> None:
    driver = new_driver()
    driver.add(prompt_of(9), max_tokens=4, ignore_eos=True)
    driver.run()
    assert driver.runner.num_forward_tokens == 9 + 3
    assert driver.engine.postprocessor.num_dropped_rows == 0


def test_the_token_after_an_end_token_is_neither_reported_nor_charged() -> None:
    driver = new_driver()
    prompt = prompt_of(20)
    expected = expected_tokens(prompt, 6, ignore_end=True)
    stopped = driver.add(prompt, max_tokens=50, ignore_eos=True, stop_token_ids=(expected[2],))
    driver.run()
    assert driver.tokens[stopped] == expected[:3]
    assert driver.runner.num_forward_tokens == 20 + 3  # one token more than the synchronous loop computes
    assert driver.engine.postprocessor.num_dropped_rows == 1


def test_an_aborted_sequence_is_in_no_step_launched_after_the_abort() -> None:
    driver = new_driver()
    kept, gone = (driver.add(prompt_of(9, seed), max_tokens=30, ignore_eos=True) for seed in (1, 2))
    for _ in range(4):
        driver.step()
    driver.abort(gone)
    num_computed = driver.runner.forward_tokens_of[gone]
    driver.run()
    assert driver.runner.forward_tokens_of[gone] == num_computed + 1  # the step that was launched before
    assert driver.tokens[kept] == expected_tokens(prompt_of(9, 1), 30, ignore_end=True)


def test_device_time_of_sequences_and_waste_sum_up_to_the_busy_time() -> None:
    driver = new_driver()
    prompts = [prompt_of(20, seed) for seed in range(8)]
    for prompt in prompts:
        stop = expected_tokens(prompt, 9, ignore_end=True)[-1]
        driver.add(prompt, max_tokens=60, ignore_eos=True, stop_token_ids=(stop,))
    charged: dict[int, int] = {}
    while driver.engine.has_work:
        report = driver.step()
        assert report.device_us is not None
        charged |= dict(zip(report.sequence_ids.tolist(), report.device_us.tolist(), strict=True))
    time = driver.engine.device_time
    assert time.busy_us == pytest.approx(driver.runner.busy_us)
    assert time.wasted_us > 0
    assert sum(charged.values()) + time.wasted_us == pytest.approx(time.busy_us, rel=0.01)


# ── planted faults: each must turn the campaign red ──


def _fails(driver: Driver) -> bool:
    try:
        run_events(driver, random.Random(0), 2000)
    except (AssertionError, ValueError, IndexError, KeyError):
        return True
    return False


def test_a_block_hashed_before_its_tokens_are_known_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Scheduler.advance

    def early(self: Scheduler, step: ScheduledStep) -> object:
        found = advance(self, step)
        self.sequence_blocks.register_computed(step.slots, self.table.length[step.slots])
        return found

    monkeypatch.setattr(Scheduler, "advance", early)
    assert _fails(new_driver())


def test_a_result_written_to_a_reused_slot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaunchedStep, "is_current", lambda self, _epoch: np.ones(len(self.epochs), np.bool_))
    assert _fails(new_driver())


def test_an_extra_token_that_is_charged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.device_time.LaunchedStep.is_current", lambda self, _epoch: self.epochs >= 0)
    driver = new_driver()
    prompt = prompt_of(20)
    stop = expected_tokens(prompt, 3, ignore_end=True)[-1]
    driver.add(prompt, max_tokens=60, ignore_eos=True, stop_token_ids=(stop,))
    driver.step()
    driver.step()
    with pytest.raises((AssertionError, ValueError)):
        driver.run()


def test_inputs_reused_before_the_device_has_read_them_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.ahead_runner.copy.deepcopy", lambda inputs: inputs)
    build = postprocess.Postprocessor.process

    def overwrite(self: postprocess.Postprocessor, step: LaunchedStep, output: object) -> object:
        report = build(self, step, output)  # type: ignore[arg-type]
        for queued in driver.engine._launched:
            queued.inputs.slot_mapping[:] = 0
        return report

    monkeypatch.setattr(postprocess.Postprocessor, "process", overwrite)
    driver = new_driver()
    assert _fails(driver)


def test_a_block_released_one_step_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Scheduler.advance

    def release(self: Scheduler, step: ScheduledStep) -> object:
        found = advance(self, step)
        for slot in step.slots[self.table.length[step.slots] >= self.table.max_total_len[step.slots]].tolist():
            self.sequence_blocks.manager.release(self.table.block_table[slot, : self.table.num_blocks[slot]], b"")
        return found

    monkeypatch.setattr(Scheduler, "advance", release)
    assert _fails(new_driver())
