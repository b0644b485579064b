"""Neurons that an account may use: the free ones of a day, and what its budgets leave of a month.

Says which budgets a call is held to, from memory, and what is used of them, by the ledger; `quota.py` reserves before
the call and settles after it, in Redis. Every few seconds what Redis counts is raised to what the ledger says, for
accounts that have called lately: after a flush, or a gateway's death, the two agree again. Raises alerts.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from storage.database import Database
from storage.errors import StoreUnavailable
from telemetry import metrics
from telemetry.clock import Clock
from tenants.quota import budgets
from tenants.quota.budgets import WHOLE_ACCOUNT, Alert, MonthlyBudget
from tenants.quota.quota_days import QuotaCalendar
from tenants.usage import usage_sums

_log = logging.getLogger(__name__)

FREE_PLAN = "free"
ALLOWANCE, ACCOUNT_BUDGET, TOKEN_BUDGET = "allowance", "account budget", "token budget"
TRUE_UP_S = 5.0
ALERTS_S = 30.0
_SEEN_FOR_S = 120.0
_MAX_SEEN = 20_000
_REMEMBERED_S = 1.0
_ACCOUNTS_AT_A_TIME = 200
_DAY_TTL_S = 2 * 86_400.0
_MONTH_TTL_S = 33 * 86_400.0


class Caller(Protocol):
    """What is asked of a principal."""

    @property
    def account_id(self) -> str: ...
    @property
    def api_token_id(self) -> str: ...
    @property
    def plan(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """So many micro-neurons (`limit`) for an account, or for one API token of it, from `since` to before `until`.
    `key` is what it is counted under; nobody who is held to it enters while it cannot be counted."""

    key: str
    name: str
    limit: int
    account_id: str
    api_token_id: str
    since: datetime
    until: datetime
    ttl_s: float
    requires_redis: bool = True


class Counts(Protocol):
    """Where reservations are counted."""

    async def raise_used(self, key: str, micro_neurons: int) -> None: ...


class Allowance:
    """The budgets of every caller, for one process. `watch` must run beside it.

    `micro_neurons_for` turns millionths of a dollar into micro-neurons; `flush` moves this process's usage into the
    ledger.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        free_micro_neurons: int,
        micro_neurons_for: Callable[[int], int],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        self._database = database
        self._clock = clock
        self._days = QuotaCalendar(clock)
        self._free_micro_neurons = free_micro_neurons
        self._micro_neurons_for = micro_neurons_for
        self._flush = flush
        self._budgets: dict[tuple[str, str], list[MonthlyBudget]] = {}  # by account and API token
        self._seen: dict[Budget, float] = {}  # -> when last, monotonic
        self._refreshing = asyncio.Lock()
        self._held: dict[tuple[str, str], tuple[float, tuple[Budget, ...]]] = {}  # by account and token, until when

    def of(self, caller: Caller) -> tuple[Budget, ...]:
        """What a call of theirs is held to. A memory read."""
        is_free = caller.plan == FREE_PLAN
        if not is_free and not self._budgets:
            return ()
        now_s = self._clock.monotonic_s()
        owner = (caller.account_id, caller.api_token_id)
        known = self._held.get(owner)
        if known is not None and known[0] > now_s:
            return known[1]
        held = self._find(caller, is_free=is_free)
        for each in held:
            if each in self._seen or len(self._seen) < _MAX_SEEN:
                self._seen[each] = now_s
        if len(self._held) >= _MAX_SEEN:
            self._held.clear()
        self._held[owner] = (now_s + _REMEMBERED_S, held)
        return held

    def _find(self, caller: Caller, *, is_free: bool) -> tuple[Budget, ...]:
        day = self._days.day()
        found = [self._free_day(caller.account_id, day)] if is_free else []
        month = None
        for api_token_id in (WHOLE_ACCOUNT, caller.api_token_id):
            for budget in self._budgets.get((caller.account_id, api_token_id), ()):
                if budget.refuses:
                    month = month or usage_sums.month_of(day)
                    found.append(self._monthly(budget, *month))
        return tuple(found)

    def left_s(self, name: str) -> int:
        """Whole seconds until a budget of that name begins anew."""
        day = self._days.day()
        until = day + timedelta(days=1) if name == ALLOWANCE else usage_sums.month_of(day)[1]
        return max(1, math.ceil((until - self._days.now()).total_seconds()))

    async def used(self, budget: Budget) -> int:
        """Micro-neurons used of a budget, by the ledger. Raises StoreUnavailable."""
        await self._flush()
        found = await usage_sums.micro_neurons(self._database, [budget.account_id], budget.since, budget.until)
        return _share(budget, found)

    async def watch(self, counts: Counts) -> None:
        """For ever: read the budgets, raise what is counted to what the ledger says, raise alerts."""
        alerts_at_s = self._clock.monotonic_s()
        while True:
            try:
                await self.refresh()
                await self.true_up(counts)
                if self._clock.monotonic_s() >= alerts_at_s:
                    alerts_at_s = self._clock.monotonic_s() + ALERTS_S
                    await self.alert()
            except StoreUnavailable as error:
                _log.warning("allowances are not compared with the ledger now", extra={"reason": str(error)})
            await asyncio.sleep(TRUE_UP_S)

    async def refresh(self) -> None:
        """Read all budgets. Raises StoreUnavailable."""
        async with self._refreshing:  # an older read that ended later would take back what a newer one brought
            found: dict[tuple[str, str], list[MonthlyBudget]] = {}
            for budget in await budgets.list_all(self._database):
                found.setdefault((budget.account_id, budget.api_token_id), []).append(budget)
            self._budgets = found
            self._held.clear()

    async def true_up(self, counts: Counts) -> None:
        """Whatever is counted less than the ledger knows of is raised to it. Raises StoreUnavailable."""
        now_s = self._clock.monotonic_s()
        for budget in [each for each, seen_s in self._seen.items() if now_s - seen_s > _SEEN_FOR_S]:
            del self._seen[budget]
        spans: dict[tuple[datetime, datetime], list[Budget]] = {}
        for budget in self._seen:
            spans.setdefault((budget.since, budget.until), []).append(budget)
        for (since, until), held in spans.items():
            account_ids = sorted({budget.account_id for budget in held})
            found: dict[tuple[str, str], int] = {}
            for start in range(0, len(account_ids), _ACCOUNTS_AT_A_TIME):
                some = account_ids[start : start + _ACCOUNTS_AT_A_TIME]
                found |= await usage_sums.micro_neurons(self._database, some, since, until)
            for budget in held:
                used = _share(budget, found)
                if used:
                    await counts.raise_used(budget.key, used)

    async def alert(self) -> None:
        """Enter an alert for every share of a budget that was passed. Raises StoreUnavailable."""
        since, until = usage_sums.month_of(self._days.day())
        account_ids = sorted({account_id for account_id, _ in self._budgets})
        alerts: list[Alert] = []
        for start in range(0, len(account_ids), _ACCOUNTS_AT_A_TIME):
            some = account_ids[start : start + _ACCOUNTS_AT_A_TIME]
            found = await usage_sums.micro_neurons(self._database, some, since, until)
            for account_id in some:
                for (owner, _), held in self._budgets.items():
                    if owner == account_id:
                        alerts += [alert for budget in held for alert in self._alerts_of(budget, found, since, until)]
        for alert in await budgets.raise_alerts(self._database, alerts):
            metrics.BUDGET_ALERTS.inc()
            _log.warning("a budget was passed", extra={"account_id": alert.account_id, "percent": alert.percent})

    def _alerts_of(
        self, budget: MonthlyBudget, found: Mapping[tuple[str, str], int], since: datetime, until: datetime
    ) -> list[Alert]:
        held = self._monthly(budget, since, until)
        used = _share(held, found)
        micro_used = used if budget.unit == "neurons" else used * budget.micro_amount // max(1, held.limit)
        return [
            Alert(
                budget.account_id,
                budget.api_token_id,
                budget.unit,
                f"{since:%Y-%m}",
                percent,
                budget.micro_amount,
                micro_used,
                self._clock.now(),
            )
            for percent in budget.alert_percents
            if used * 100 >= held.limit * percent
        ]

    def _free_day(self, account_id: str, day: datetime) -> Budget:
        return Budget(
            key=f"neurons:day:{account_id}:{day:%Y%m%d}",
            name=ALLOWANCE,
            limit=self._free_micro_neurons,
            account_id=account_id,
            api_token_id=WHOLE_ACCOUNT,
            since=day,
            until=day + timedelta(days=1),
            ttl_s=_DAY_TTL_S,
        )

    def _monthly(self, budget: MonthlyBudget, since: datetime, until: datetime) -> Budget:
        is_whole = budget.api_token_id == WHOLE_ACCOUNT
        owner = budget.account_id if is_whole else f"{budget.account_id}:{budget.api_token_id}"
        amount = budget.micro_amount
        return Budget(
            key=f"neurons:month:{owner}:{budget.unit}:{since:%Y%m}",
            name=ACCOUNT_BUDGET if is_whole else TOKEN_BUDGET,
            limit=amount if budget.unit == "neurons" else self._micro_neurons_for(amount),
            account_id=budget.account_id,
            api_token_id=budget.api_token_id,
            since=since,
            until=until,
            ttl_s=_MONTH_TTL_S,
        )


@dataclass(frozen=True)
class Forecast:
    """What a month comes to, if it goes on as the days before: micro-neurons used until now and expected at its end,
    and those of them beyond each day's free ones."""

    month: str
    used: int
    used_beyond_free: int
    expected: int
    expected_beyond_free: int
    days_left: float


def forecast(by_day: Mapping[str, int], now: datetime, free_per_day: int) -> Forecast:
    """`by_day` is micro-neurons of days as YYYY-MM-DD, of this month and of seven days before now. The days to come are
    taken to be like the last seven times 24 hours: their mean, today's part so far with them."""
    now = now.astimezone(UTC)
    first, next_first = usage_sums.month_of(now)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    month = {day: used for day, used in by_day.items() if f"{first:%Y-%m-%d}" <= day <= f"{today:%Y-%m-%d}"}
    used, beyond = sum(month.values()), sum(max(0, each - free_per_day) for each in month.values())
    passed_today = (now - today) / timedelta(days=1)
    last = [by_day.get(f"{today - timedelta(days=back):%Y-%m-%d}", 0) for back in range(7)]
    per_day = sum(last) / (6 + passed_today)
    days_left = (next_first - now) / timedelta(days=1)
    rest_of_today = per_day * min(1.0, days_left, 1 - passed_today)
    days_after = max(0.0, days_left - (1 - passed_today))
    so_far = by_day.get(f"{today:%Y-%m-%d}", 0)
    beyond_today = max(0.0, so_far + rest_of_today - free_per_day) - max(0, so_far - free_per_day)
    beyond_after = days_after * max(0.0, per_day - free_per_day)
    return Forecast(
        month=f"{first:%Y-%m}",
        used=used,
        used_beyond_free=beyond,
        expected=round(used + rest_of_today + days_after * per_day),
        expected_beyond_free=round(beyond + beyond_today + beyond_after),
        days_left=days_left,
    )


def _share(budget: Budget, found: Mapping[tuple[str, str], int]) -> int:
    """Of sums by account and API token, what a budget is about."""
    if budget.api_token_id == WHOLE_ACCOUNT:
        return sum(used for (account_id, _), used in found.items() if account_id == budget.account_id)
    return found.get((budget.account_id, budget.api_token_id), 0)
