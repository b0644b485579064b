"""Neuron allowances: the free neurons of a day, and the budgets of a month.

Knows which budgets apply to a call (from memory) and their usage according to the ledger; `quota.py` reserves and
settles in Redis. Every few seconds, Redis's counts of recently active accounts are raised to the ledger's values, so
that they agree again after Redis lost data or a gateway died. Raises alerts.
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
from tenants.credentials.principal import Principal
from tenants.quota import budgets
from tenants.quota.budgets import WHOLE_ACCOUNT, Alert, MonthlyBudget
from tenants.quota.quota_days import QuotaCalendar
from tenants.quota.quota_plan import Budget
from tenants.usage import usage_sums

_log = logging.getLogger(__name__)

FREE_PLAN = "free"
ALLOWANCE, ACCOUNT_BUDGET, TOKEN_BUDGET = "allowance", "account budget", "token budget"
TRUE_UP_S = 5.0
ALERTS_S = 30.0
_RECENT_S = 120.0
_MAX_RECENT = 20_000
_CACHE_S = 1.0
_ACCOUNTS_AT_A_TIME = 200
_DAY_TTL_S = 2 * 86_400.0
_MONTH_TTL_S = 33 * 86_400.0


class Counts(Protocol):
    """The store that counts reservations."""

    async def raise_used(self, key: str, micro_neurons: int) -> None: ...


class Allowance:
    """The budgets of all callers, for one process. `watch` must run in the background.

    `micro_neurons_for` converts millionths of a dollar into micro-neurons; `flush` writes this process's usage to the
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
        self._recent: dict[Budget, float] = {}  # -> monotonic time of the last use
        self._refreshing = asyncio.Lock()
        # Expiry and budgets, by account and API token.
        self._cache: dict[tuple[str, str], tuple[float, tuple[Budget, ...]]] = {}

    def of(self, caller: Principal) -> tuple[Budget, ...]:
        """Return the budgets that apply to a caller's call, from memory."""
        is_free = caller.plan == FREE_PLAN
        if not is_free and not self._budgets:
            return ()
        now_s = self._clock.monotonic_s()
        owner = (caller.account_id, caller.api_token_id)
        known = self._cache.get(owner)
        if known is not None and known[0] > now_s:
            return known[1]
        budgets = self._find(caller, is_free=is_free)
        for each in budgets:
            if each in self._recent or len(self._recent) < _MAX_RECENT:
                self._recent[each] = now_s
        if len(self._cache) >= _MAX_RECENT:
            self._cache.clear()
        self._cache[owner] = (now_s + _CACHE_S, budgets)
        return budgets

    def _find(self, caller: Principal, *, is_free: bool) -> tuple[Budget, ...]:
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
        """Return the whole seconds until a budget of that name resets."""
        day = self._days.day()
        until = day + timedelta(days=1) if name == ALLOWANCE else usage_sums.month_of(day)[1]
        return max(1, math.ceil((until - self._days.now()).total_seconds()))

    async def used(self, budget: Budget) -> int:
        """Return the used micro-neurons of a budget according to the ledger. Raises StoreUnavailable."""
        await self._flush()
        found = await usage_sums.micro_neurons(self._database, [budget.account_id], budget.since, budget.until)
        return _share(budget, found)

    async def watch(self, counts: Counts) -> None:
        """Run forever: read the budgets, raise counts to the ledger's values, raise alerts."""
        alerts_at_s = self._clock.monotonic_s()
        while True:
            try:
                await self.refresh()
                await self.true_up(counts)
                if self._clock.monotonic_s() >= alerts_at_s:
                    alerts_at_s = self._clock.monotonic_s() + ALERTS_S
                    await self.alert()
            except StoreUnavailable as error:
                _log.warning("allowances cannot be compared with the ledger", extra={"reason": str(error)})
            await asyncio.sleep(TRUE_UP_S)

    async def refresh(self) -> None:
        """Read all budgets. Raises StoreUnavailable."""
        async with self._refreshing:  # keeps an older read from replacing a newer one
            found: dict[tuple[str, str], list[MonthlyBudget]] = {}
            for budget in await budgets.list_all(self._database):
                found.setdefault((budget.account_id, budget.api_token_id), []).append(budget)
            self._budgets = found
            self._cache.clear()

    async def true_up(self, counts: Counts) -> None:
        """Raise every count that is below the ledger's value. Raises StoreUnavailable."""
        now_s = self._clock.monotonic_s()
        for budget in [each for each, used_s in self._recent.items() if now_s - used_s > _RECENT_S]:
            del self._recent[budget]
        spans: dict[tuple[datetime, datetime], list[Budget]] = {}
        for budget in self._recent:
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
        """Store an alert for every passed threshold. Raises StoreUnavailable."""
        since, until = usage_sums.month_of(self._days.day())
        account_ids = sorted({account_id for account_id, _ in self._budgets})
        alerts: list[Alert] = []
        for start in range(0, len(account_ids), _ACCOUNTS_AT_A_TIME):
            some = account_ids[start : start + _ACCOUNTS_AT_A_TIME]
            found = await usage_sums.micro_neurons(self._database, some, since, until)
            monthly = [budget for (owner, _), group in self._budgets.items() if owner in some for budget in group]
            alerts += [alert for budget in monthly for alert in self._alerts_of(budget, found, since, until)]
        for alert in await budgets.raise_alerts(self._database, alerts):
            metrics.BUDGET_ALERTS.inc()
            _log.warning(
                "a budget threshold was passed", extra={"account_id": alert.account_id, "percent": alert.percent}
            )

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
    """Projected usage of a month: micro-neurons used so far and expected at its end, and the parts beyond the free
    allowance."""

    month: str
    used: int
    used_beyond_free: int
    expected: int
    expected_beyond_free: int
    days_left: float


async def read_forecast(
    database: Database, account: usage_sums.Filter, now: datetime, free_per_day: int = 0
) -> Forecast:
    """Forecast the usage of this month. `free_per_day` are the free micro-neurons. Raises StoreUnavailable."""
    first, _ = usage_sums.month_of(now)
    since, until = min(first, now - timedelta(days=7)), now + timedelta(days=1)
    totals = await usage_sums.total(database, account, since, until, "day")
    return forecast({total.key: total.micro_neurons for total in totals}, now, free_per_day)


def forecast(by_day: Mapping[str, int], now: datetime, free_per_day: int) -> Forecast:
    """Project the month from `by_day`, micro-neurons by day (YYYY-MM-DD) of this month and of the seven days before
    now. Remaining days are estimated by the mean of the last seven times 24 hours."""
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
    """Return a budget's part of sums by account and API token."""
    if budget.api_token_id == WHOLE_ACCOUNT:
        return sum(used for (account_id, _), used in found.items() if account_id == budget.account_id)
    return found.get((budget.account_id, budget.api_token_id), 0)
