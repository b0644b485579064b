"""telemetry/steady_clock.py: jumps of the wall clock are ignored for 15 minutes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from telemetry.steady_clock import ACCEPT_JUMP_AFTER_S, SteadyClock
from tests.tenants.hand_clock import HandClock


@pytest.mark.parametrize("jump_s", [3600, -3600, 86_400, -86_400, 61, -61])
def test_clock_jump_and_its_correction_are_ignored(jump_s: float):
    clock = HandClock()
    steady, true = SteadyClock(clock), clock.now()
    clock.jump_wall(jump_s)
    for _ in range(14):
        assert steady.now() == true
        clock.pass_time(60)
        true += timedelta(seconds=60)
    clock.jump_wall(-jump_s)
    assert steady.now() == true


def test_lasting_clock_jump_is_adopted():
    clock = HandClock()
    steady = SteadyClock(clock)
    clock.jump_wall(86_400)
    steady.now()
    clock.pass_time(ACCEPT_JUMP_AFTER_S)
    assert steady.now() == clock.now()


def test_drifting_clock_is_followed():
    clock = HandClock()
    steady = SteadyClock(clock)
    for _ in range(100):
        clock.pass_time(60)
        clock.jump_wall(30)
        assert steady.now() == clock.now()
    assert steady.monotonic_s() == clock.monotonic_s()
