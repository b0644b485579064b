"""tenants/quota/pace.py: estimates of the time until a slot is released."""

import pytest

from tenants.quota.pace import MAX_WAIT_S, MIN_WAIT_S, ReleasePace


def test_wait_is_shorter_with_more_slots():
    pace = ReleasePace()
    assert pace.next_s("a", 4) == MIN_WAIT_S
    pace.record("a", 40.0)
    assert pace.next_s("a", 4) == 10.0
    assert pace.next_s("a", 40) == MIN_WAIT_S
    assert pace.next_s("a", 0) == 40.0
    assert pace.next_s("b", 1) == MIN_WAIT_S
    pace.record("b", 86_400.0)
    assert pace.next_s("b", 1) == MAX_WAIT_S


def test_newer_durations_weigh_more():
    pace = ReleasePace()
    pace.record("a", 2.0)
    for _ in range(40):
        pace.record("a", 30.0)
    assert pace.next_s("a", 1) == pytest.approx(30.0, abs=0.5)
