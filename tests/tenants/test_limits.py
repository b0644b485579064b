"""Windows of requests: what is admitted, how it stands, and what gateways know of each other."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from storage.errors import StoreUnavailable
from tenants.limits import CONTRACT, Limits, Rule, parse_rules

START = datetime(2026, 1, 1, tzinfo=UTC)


class HandClock:
    def __init__(self) -> None:
        self.time = START

    def now(self) -> datetime:
        return self.time

    def monotonic_s(self) -> float:
        return self.time.timestamp()


class SharedCounters:
    """Redis, as far as limits see it."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.is_away = False

    async def add(self, counts: Mapping[str, int], ttl_s: float) -> dict[str, int]:
        if self.is_away:
            raise StoreUnavailable("away")
        for key, count in counts.items():
            self.totals[key] = self.totals.get(key, 0) + count
        return {key: self.totals[key] for key in counts}


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def counters() -> SharedCounters:
    return SharedCounters()


def limits_of(text: str, counters: SharedCounters, clock: HandClock) -> Limits:
    return Limits(parse_rules(text), counters, clock)


def admitted(limits: Limits, count: int, account_id: str = "a", token: str = "t", task: str = "chat") -> int:
    found = [limits.take(account_id, token, task) for _ in range(count)]
    return sum(entry is None or entry[1].is_admitted for entry in found)


def test_exactly_as_many_as_the_rule_says(counters: SharedCounters, clock: HandClock):
    limits = limits_of("chat=3/60", counters, clock)
    assert admitted(limits, 5) == 3
    assert admitted(limits, 5, account_id="b") == 3
    assert admitted(limits, 5, task="other") == 5


def test_a_window_ends_at_a_whole_multiple_of_its_length(counters: SharedCounters, clock: HandClock):
    limits = limits_of("chat=3/60", counters, clock)
    clock.time = START + timedelta(seconds=50)
    assert admitted(limits, 5) == 3
    found = limits.take("a", "t", "chat")
    assert found is not None
    assert (found[1].remaining, found[1].reset_s, found[1].rule) == (0, 10, Rule(3, 60))
    clock.time = START + timedelta(seconds=60)
    assert admitted(limits, 5) == 3


def test_the_rule_that_is_nearest_to_refusing_is_told_and_a_refusal_counts_nowhere(
    counters: SharedCounters, clock: HandClock
):
    limits = limits_of("chat=10/60, token=2/300", counters, clock)
    assert admitted(limits, 4) == 2
    found = limits.take("a", "t", "chat")
    assert found is not None
    assert (found[0], found[1].is_admitted) == ("token", False)
    assert admitted(limits, 20, token="other") == 2
    assert sum(admitted(limits, 1, token=f"t{i}") for i in range(20)) == 6


async def test_gateways_know_of_each_other_after_an_exchange(counters: SharedCounters, clock: HandClock):
    one, two = (limits_of("chat=10/60", counters, clock) for _ in range(2))
    assert admitted(one, 6) == 6
    assert admitted(two, 1) == 1
    await one.exchange()
    await two.exchange()
    assert admitted(two, 10) == 3
    await two.exchange()
    await one.exchange()
    assert admitted(one, 10) == 0
    assert sum(counters.totals.values()) == 10


async def test_without_the_counters_each_counts_for_itself_and_tells_later(counters: SharedCounters, clock: HandClock):
    one, two = (limits_of("chat=10/60", counters, clock) for _ in range(2))
    counters.is_away = True
    assert admitted(one, 8) == 8
    await one.exchange()
    assert admitted(one, 8) == 2
    counters.is_away = False
    await one.exchange()
    assert admitted(two, 1) == 1
    await two.exchange()
    assert admitted(two, 5) == 0


async def test_windows_that_are_over_are_forgotten(counters: SharedCounters, clock: HandClock):
    limits = limits_of("chat=3/60", counters, clock)
    for i in range(50):
        admitted(limits, 1, account_id=str(i))
    clock.time = START + timedelta(seconds=61)
    await limits.exchange()
    assert not limits._counts
    assert admitted(limits, 5, account_id="1") == 3


def test_rules_are_read(counters: SharedCounters, clock: HandClock):
    assert parse_rules("") == {}
    assert parse_rules("contract") == parse_rules(CONTRACT)
    assert parse_rules("a-b=1/2") == {"a-b": Rule(1, 2)}
    assert limits_of("", counters, clock).take("a", "t", "chat") is None
    for bad in ("x", "chat=0/60", "chat=1", "chat=1/0", "Chat=1/2", "chat=1/60 token=1/2"):
        with pytest.raises(ValueError, match="must be contract"):
            parse_rules(bad)
