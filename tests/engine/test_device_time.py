"""Device time: each step's time is charged to its sequences, whatever becomes of them, and to no others."""

from __future__ import annotations

import time

import numpy as np
import pytest

from engine.inputs import StepInputs, StepOutput
from engine.ranks import wire
from engine.report import EngineStatus, StepReport
from tests.engine.driver import Driver
from tests.engine.test_loop import prompt_of
from tests.fakes.runner import FakeRunner


class SlowRunner(FakeRunner):
    """A runner that takes a fixed time for each step, and sums it."""

    busy_s = 0.0

    def run(self, inputs: StepInputs) -> StepOutput:
        started_s = time.perf_counter()
        time.sleep(0.002)
        output = super().run(inputs)
        self.busy_s += time.perf_counter() - started_s
        return output


def charged_us(driver: Driver) -> dict[int, int]:
    """Return sequence id -> device time of its last entry."""
    found: dict[int, int] = {}
    while driver.engine.has_work:
        report = driver.step()
        assert report.device_us is not None
        for sequence_id, device_us in zip(report.sequence_ids.tolist(), report.device_us.tolist(), strict=True):
            assert device_us >= found.get(sequence_id, 0), "it only grows"
            found[sequence_id] = device_us
    return found


def test_device_time_charged_equals_busy_time():
    driver = Driver(SlowRunner(num_blocks=64))
    for number in range(12):
        driver.add(prompt_of(5 + 11 * number, number), max_tokens=3 + number, ignore_eos=True)
    found = charged_us(driver)
    assert len(found) == 12
    assert sum(found.values()) == pytest.approx(driver.engine.device_time.busy_us, abs=12)
    assert sum(found.values()) >= driver.runner.busy_s * 1e6
    assert driver.engine.status().busy_us == int(driver.engine.device_time.busy_us)


def test_time_of_a_step_is_divided_in_proportion_to_tokens():
    driver = Driver(SlowRunner(num_blocks=64))
    long, short = driver.add(prompt_of(48), max_tokens=1), driver.add(prompt_of(12, 1), max_tokens=1)
    found = charged_us(driver)
    assert found[long] == pytest.approx(4 * found[short], rel=0.01)


def test_preempted_and_aborted_sequences_keep_their_device_time():
    driver = Driver(SlowRunner(num_blocks=12), max_step_tokens=32)
    ids = [driver.add(prompt_of(40, number), max_tokens=60, ignore_eos=True) for number in range(4)]
    for _ in range(8):
        driver.step()
    driver.abort(ids[3])
    found = charged_us(driver)
    assert driver.engine.scheduler.num_preemptions > 0
    assert sum(found.values()) == pytest.approx(driver.engine.device_time.busy_us, rel=0.001)


def test_idle_time_is_not_charged():
    driver = Driver()
    worked_s = 0.0
    for _ in range(3):
        driver.add(prompt_of(9), max_tokens=2, ignore_eos=True)
        started_s = time.perf_counter()
        charged_us(driver)
        worked_s += time.perf_counter() - started_s
        time.sleep(0.05)
    assert driver.engine.device_time.busy_us <= worked_s * 1e6


def test_device_time_reaches_the_replica():
    ids = np.array([1, 2], np.int64)
    report = StepReport(ids, ids.astype(np.int32), ids.astype(np.uint8), ids.astype(np.int32), device_us=ids * 10**12)
    frame = wire.encode_report(report, EngineStatus())
    stepped = wire.decode_rank_message(frame[4:])
    assert isinstance(stepped, wire.Stepped)
    assert stepped.report is not None
    assert stepped.report.device_us.tolist() == [10**12, 2 * 10**12]  # type: ignore[union-attr]
