"""The circuit breaker of a node: ejection, its duration, and the share of calls afterwards."""

from __future__ import annotations

import pytest

from gateway.nodes.health import HealthPolicy, NodeHealth

POLICY = HealthPolicy(max_failures=3, ejection_s=5.0, max_ejection_s=15.0, slow_start_s=10.0)


def fail(health: NodeHealth, times: int, now_s: float) -> list[bool]:
    return [health.record_failure(now_s) for _ in range(times)]


def test_consecutive_failures_eject_the_node():
    health = NodeHealth(POLICY)
    assert fail(health, 2, 0.0) == [False, False]
    health.record_success(0.0)
    assert fail(health, 3, 1.0) == [False, False, True]
    assert health.ejected_until_s == 6.0


def test_share_of_calls_grows_after_the_ejection():
    health = NodeHealth(POLICY)
    fail(health, 3, 0.0)
    assert health.share(5.0) == pytest.approx(0.02)
    assert health.share(10.0) == pytest.approx(0.5)
    assert health.share(15.0) == 1.0


def test_one_failure_after_the_ejection_ejects_again_for_longer():
    health = NodeHealth(POLICY)
    fail(health, 3, 0.0)
    assert health.record_failure(6.0)
    assert health.ejected_until_s == 16.0
    assert health.record_failure(20.0)
    assert health.ejected_until_s == 35.0  # the longest ejection


def test_failures_of_calls_sent_before_the_ejection_do_not_prolong_it():
    health = NodeHealth(POLICY)
    assert fail(health, 5, 0.0)[2:] == [True, False, False]
    assert health.ejected_until_s == 5.0


def test_half_of_many_calls_failing_ejects_the_node():
    health = NodeHealth(POLICY)
    ejected = []
    for _ in range(10):
        ejected += [health.record_failure(0.0), health.record_failure(0.0)]
        health.record_success(0.0)
    assert True in ejected
    occasional = NodeHealth(POLICY)
    for _ in range(50):
        assert not occasional.record_failure(0.0)
        for _ in range(3):
            occasional.record_success(0.0)


def test_long_service_resets_the_duration_of_ejections():
    health = NodeHealth(POLICY)
    fail(health, 3, 0.0)
    health.record_success(100.0)
    assert fail(health, 3, 200.0)[-1]
    assert health.ejected_until_s == 205.0


def test_lateness_halves_every_ten_seconds():
    health = NodeHealth(POLICY)
    assert health.lateness_s(0.0) == 0.0
    for _ in range(50):
        health.record_first_event(1.0, 0.0)
    assert health.lateness_s(0.0) == pytest.approx(1.0, rel=0.01)
    assert health.lateness_s(10.0) == pytest.approx(0.5, rel=0.01)
    for _ in range(50):
        health.record_first_event(-1.0, 10.0)
    assert not health.was_late
