"""tenants/quota/allowance.py: the budgets that apply to a call, their usage by the ledger, and forecasts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from catalog.pricing import micro_neurons_for
from storage.database import Database
from telemetry.steady_clock import ACCEPT_JUMP_AFTER_S
from tenants.quota import budgets
from tenants.quota.allowance import Allowance, forecast
from tenants.quota.budgets import MonthlyBudget
from tenants.quota.quota_days import QuotaCalendar
from tenants.quota.quota_plan import Budget
from tenants.usage import usage_entries as usage
from tests.tenants.usage.made_entries import entry

ACCOUNT, TOKEN = "a" * 32, "b" * 32
FREE = 10_000_000_000


@dataclass
class Clock:
    """A clock that is advanced by hand; `wall` can jump."""

    wall: datetime = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
    passed_s: float = 0.0

    def monotonic_s(self) -> float:
        return self.passed_s

    def now(self) -> datetime:
        return self.wall

    def wait(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.passed_s += seconds


@dataclass(frozen=True)
class Caller:
    account_id: str = ACCOUNT
    api_token_id: str = TOKEN
    plan: str = "free"


class Counts:
    def __init__(self) -> None:
        self.used: dict[str, int] = {}

    async def raise_used(self, key: str, micro_neurons: int) -> None:
        self.used[key] = max(micro_neurons, self.used.get(key, 0))


async def _nothing() -> None: ...


def allowance_of(database: Database | None, clock: Clock) -> Allowance:
    return Allowance(
        database,  # type: ignore[arg-type]
        clock,
        free_micro_neurons=FREE,
        micro_neurons_for=micro_neurons_for,
        flush=_nothing,
    )


def test_free_account_has_a_daily_allowance_and_paid_account_has_none() -> None:
    clock = Clock()
    allowance = allowance_of(None, clock)
    [today] = allowance.of(Caller())
    assert (today.name, today.limit, today.requires_redis) == ("allowance", FREE, True)
    assert today.until == datetime(2026, 11, 21, tzinfo=UTC)
    assert allowance.of(Caller(plan="paid")) == ()
    clock.wait(12 * 3600 - 1)
    assert allowance.of(Caller()) == (today,)
    clock.wait(1)
    [tomorrow] = allowance.of(Caller())
    assert (tomorrow.since, tomorrow.key != today.key) == (today.until, True)


async def test_counts_are_raised_to_the_ledger_s_values(database: Database) -> None:
    clock = Clock()
    allowance = allowance_of(database, clock)
    await budgets.put(database, MonthlyBudget(ACCOUNT, TOKEN, "neurons", 500))
    await budgets.put(database, MonthlyBudget(ACCOUNT, "", "usd", 11_000))
    await budgets.put(database, MonthlyBudget(ACCOUNT, "", "neurons", 5, refuses=False))
    await allowance.refresh()
    held = {budget.name: budget for budget in allowance.of(Caller())}
    assert held.keys() == {"allowance", "account budget", "token budget"}
    assert held["account budget"].limit == 1_000_000_000, "a dollar is a dollar's worth of neurons"
    await usage.write(
        database,
        [
            entry("r1", micro_neurons=100),
            entry("r2", micro_neurons=10, api_token_id="d" * 32),
            entry("r3", micro_neurons=1, started_at=clock.wall - timedelta(days=1)),
            entry("r4", micro_neurons=1000, started_at=clock.wall - timedelta(days=30)),
            entry("r5", micro_neurons=1000, account_id="e" * 32),
        ],
    )
    expected = {"allowance": 110, "account budget": 111, "token budget": 101}
    assert {name: await allowance.used(budget) for name, budget in held.items()} == expected
    counts = Counts()
    await allowance.true_up(counts)
    assert counts.used == {held[name].key: used for name, used in expected.items()}
    clock.wait(3600)
    counts.used.clear()
    await allowance.true_up(counts)
    assert counts.used == {}, "usage is read only for accounts with calls"


async def test_each_passed_threshold_alerts_once(database: Database) -> None:
    clock = Clock()
    allowance = allowance_of(database, clock)
    await budgets.put(database, MonthlyBudget(ACCOUNT, TOKEN, "neurons", 200, alert_percents=(50, 100)))
    await allowance.refresh()
    await usage.write(database, [entry("r1", micro_neurons=100)])
    for _ in range(2):
        await allowance.alert()
    [half] = await budgets.list_alerts(database, ACCOUNT)
    assert (half.percent, half.micro_used, half.month) == (50, 100, "2026-11")
    await usage.write(database, [entry("r2", micro_neurons=100)])
    await allowance.alert()
    assert sorted(alert.percent for alert in await budgets.list_alerts(database, ACCOUNT)) == [50, 100]
    assert await budgets.list_alerts(database, "f" * 32) == []


async def test_budget_is_set_changed_listed_and_removed(database: Database) -> None:
    budget = MonthlyBudget(ACCOUNT, TOKEN, "usd", 5_000_000, refuses=False, alert_percents=())
    await budgets.put(database, MonthlyBudget(ACCOUNT, TOKEN, "usd", 1))
    await budgets.put(database, budget)
    assert await budgets.list_all(database, ACCOUNT) == [budget]
    assert await budgets.remove(database, ACCOUNT, TOKEN, "usd")
    assert not await budgets.remove(database, ACCOUNT, TOKEN, "usd")
    assert await budgets.list_all(database) == []


@pytest.mark.parametrize(
    "bad", [{"unit": "euro"}, {"micro_amount": 0}, {"micro_amount": 10**16}, {"alert_percents": (0,)}]
)
def test_invalid_budget_is_rejected(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        MonthlyBudget(**{"account_id": ACCOUNT, "api_token_id": "", "unit": "usd", "micro_amount": 1} | bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("jump_s", [3600, -3600, 86_400, -86_400, 61, -61, 1e7])
def test_clock_jump_moves_the_day_neither_back_nor_forward(jump_s: float) -> None:
    clock = Clock(wall=datetime(2026, 11, 20, 23, 30, tzinfo=UTC))
    days = QuotaCalendar(clock)
    clock.wall += timedelta(seconds=jump_s)
    true = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)
    for _ in range(14):
        assert abs((days.now() - true).total_seconds()) <= 60
        assert days.day() == datetime(2026, 11, 20, tzinfo=UTC)
        clock.wait(60)
        true += timedelta(seconds=60)
    clock.wall -= timedelta(seconds=jump_s)  # corrected
    before = days.day()
    for _ in range(40):
        clock.wait(60)
        assert before <= days.day() <= datetime(2026, 11, 21, tzinfo=UTC)
        before = days.day()
    assert before == datetime(2026, 11, 21, tzinfo=UTC)


def test_lasting_clock_correction_is_adopted_and_no_day_repeats() -> None:
    clock = Clock(wall=datetime(2026, 11, 20, 12, tzinfo=UTC))
    days = QuotaCalendar(clock)
    clock.wall -= timedelta(days=1)
    for _ in range(int(ACCEPT_JUMP_AFTER_S // 60) + 2):
        clock.wait(60)
        assert days.day() == datetime(2026, 11, 20, tzinfo=UTC)
    assert days.now() == clock.wall


def test_forecast_continues_the_last_week() -> None:
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    steady = {f"2026-11-{day:02}": 24 for day in range(1, 20)} | {"2026-11-20": 12}
    found = forecast(steady, noon, free_per_day=10)
    assert (found.month, found.used, found.days_left) == ("2026-11", 19 * 24 + 12, 10.5)
    assert found.expected == 30 * 24
    assert (found.used_beyond_free, found.expected_beyond_free) == (19 * 14 + 2, 30 * 14)
    assert forecast({}, noon, free_per_day=10).expected == 0
    at_the_end = forecast(steady, datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC), 0)
    assert at_the_end.expected == pytest.approx(at_the_end.used, abs=1)


def test_equal_budgets_are_equal_values() -> None:
    held = allowance_of(None, Clock()).of(Caller())
    assert held == allowance_of(None, Clock()).of(Caller())
    assert {*held}
    assert isinstance(held[0], Budget)
