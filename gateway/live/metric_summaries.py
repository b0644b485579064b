"""Summaries of calls, tokens, cost, errors and latency over time, of the platform or of one account.

Made from the ledger's sums and its newest calls; no metrics server is needed. A summary is computed at most once in
CACHE_S seconds, however many dashboards ask for it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from msgspec import Struct

from catalog.pricing import usd
from engine.protocol.events import FinishReason
from gateway.nodes.snapshot import Nodes
from storage.database import Database
from telemetry.bounded_cache import BoundedCache
from tenants.quota import budgets
from tenants.quota.budgets import Alert
from tenants.usage import usage_entries, usage_sums
from tenants.usage.usage_sums import Filter, Period, StepTotal

CACHE_S = 5.0
MAX_CACHED = 256
MAX_MEASURED_CALLS = 5000
MAX_ALERTS = 20
MAX_SPAN = timedelta(days=366)
_SUCCESSES = frozenset(get_args(FinishReason))
# The step for spans up to this length.
_STEPS: tuple[tuple[timedelta, Period, int], ...] = (
    (timedelta(hours=6), "minute", 60),
    (timedelta(days=8), "hour", 3600),
    (MAX_SPAN, "day", 86400),
)


class MetricPoint(Struct, frozen=True, kw_only=True):
    """The calls that started within one step from `at`."""

    at: datetime
    calls: int
    errors: int
    useful: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    neurons: float
    usd: float


class MetricTotals(Struct, frozen=True, kw_only=True):
    """Totals of the span. `usd_per_useful` is null without useful responses."""

    calls: int
    errors: int
    useful: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    neurons: float
    usd: float
    usd_per_useful: float | None


class Percentiles(Struct, frozen=True):
    """Percentiles in milliseconds."""

    p50: float
    p95: float
    p99: float


class LatencySummary(Struct, frozen=True, kw_only=True):
    """Latency of the newest `num_calls` calls of the span; null without calls, `ttft_ms` also without output."""

    num_calls: int
    ttft_ms: Percentiles | None
    total_ms: Percentiles | None


class ErrorCount(Struct, frozen=True, kw_only=True):
    """The number of calls that ended with a status other than success."""

    status: str
    num: int


class AlertReport(Struct, frozen=True, kw_only=True):
    """A passed threshold of a budget. Amounts are in `unit`."""

    account_id: str
    api_token_id: str | None
    unit: str
    month: str
    percent: int
    amount: float
    used: float
    at: datetime


class MetricSummary(Struct, frozen=True, kw_only=True):
    """A summary. `series` has a point for every step, also for those without calls."""

    since: datetime
    until: datetime
    step_s: int
    series: list[MetricPoint]
    totals: MetricTotals
    latency: LatencySummary
    errors: list[ErrorCount]
    ready_models: list[str]
    alerts: list[AlertReport]


class MetricSummaries:
    """Computes summaries and caches them briefly. Concurrent requests for the same summary share one computation."""

    def __init__(self, database: Database, nodes: Nodes) -> None:
        self._database = database
        self._nodes = nodes
        self._cache: BoundedCache[tuple[str, datetime, datetime], asyncio.Task[MetricSummary]] = BoundedCache(
            MAX_CACHED, ttl_s=CACHE_S
        )

    async def get(self, account_id: str, since: datetime, until: datetime) -> MetricSummary:
        """Return the summary of an account, or of the platform for "". Raises StoreUnavailable."""
        key = (account_id, since, until)
        task = self._cache.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._compute(Filter(account_id or None), since, until))
            self._cache.put(key, task)
        return await asyncio.shield(task)

    async def _compute(self, which: Filter, since: datetime, until: datetime) -> MetricSummary:
        step, step_s = step_of(until - since)
        sums = await usage_sums.totals_by_step(self._database, which, since, until, step)
        latency = await usage_entries.newest_latency(self._database, which, since, until, MAX_MEASURED_CALLS)
        alerts = await budgets.list_alerts(self._database, which.account_id, MAX_ALERTS)
        return MetricSummary(
            since=since,
            until=until,
            step_s=step_s,
            series=_series(since, until, step_s, sums),
            totals=_totals(sums),
            latency=LatencySummary(
                num_calls=latency.num_calls,
                ttft_ms=None if latency.ttft_ms is None else Percentiles(*latency.ttft_ms),
                total_ms=None if latency.total_ms is None else Percentiles(*latency.total_ms),
            ),
            errors=_errors(sums),
            ready_models=self._nodes.hot_models(),
            alerts=[_alert_report(alert) for alert in alerts],
        )


def step_of(span: timedelta) -> tuple[Period, int]:
    """Return the step for a span, and its seconds."""
    return next(((step, step_s) for longest, step, step_s in _STEPS if span <= longest), ("day", 86400))


def _series(since: datetime, until: datetime, step_s: int, sums: Sequence[StepTotal]) -> list[MetricPoint]:
    """Return a point for every step of the span."""
    by_step: dict[int, list[StepTotal]] = {}
    for each in sums:
        by_step.setdefault(int(each.at.timestamp()) // step_s, []).append(each)
    first, last = int(since.timestamp()) // step_s, math.ceil(until.timestamp() / step_s)
    return [
        MetricPoint(at=datetime.fromtimestamp(number * step_s, UTC), **_added(by_step.get(number, ())))
        for number in range(first, last)
    ]


def _totals(sums: Sequence[StepTotal]) -> MetricTotals:
    added = _added(sums)
    useful = added["useful"]
    return MetricTotals(**added, usd_per_useful=added["usd"] / useful if useful > 0 else None)


def _added(sums: Iterable[StepTotal]) -> dict[str, Any]:
    """Return the fields of a point that are sums."""
    rows = list(sums)
    micro_neurons = sum(row.micro_neurons for row in rows)
    return {
        "calls": sum(row.num_calls for row in rows),
        "errors": sum(row.num_calls for row in rows if row.status not in _SUCCESSES),
        "useful": sum(row.num_useful for row in rows),
        "prompt_tokens": sum(row.prompt_tokens for row in rows),
        "cached_tokens": sum(row.cached_tokens for row in rows),
        "completion_tokens": sum(row.completion_tokens for row in rows),
        "neurons": micro_neurons / 1e6,
        "usd": usd(micro_neurons),
    }


def _errors(sums: Iterable[StepTotal]) -> list[ErrorCount]:
    """Return the statuses other than success, the most frequent first."""
    counts: Counter[str] = Counter()
    for row in sums:
        if row.status not in _SUCCESSES:
            counts[row.status] += row.num_calls
    return [ErrorCount(status=status, num=num) for status, num in counts.most_common()]


def _alert_report(alert: Alert) -> AlertReport:
    return AlertReport(
        account_id=alert.account_id,
        api_token_id=alert.api_token_id or None,
        unit=alert.unit,
        month=alert.month,
        percent=alert.percent,
        amount=alert.micro_amount / 1e6,
        used=alert.micro_used / 1e6,
        at=alert.at,
    )
