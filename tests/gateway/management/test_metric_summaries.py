"""Metric summaries over the ledger, on SQLite and Postgres, and the routes that show them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gateway.live.metric_summaries import MetricSummaries, MetricSummary
from storage.columns import uuid7_floor
from storage.database import Database
from tenants.usage import usage_entries
from tenants.usage.usage_entries import UsageEntry

NOON = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
A, B = "a" * 32, "b" * 32


class NoNodes:
    """The part of the node snapshot that summaries use."""

    def hot_models(self) -> list[str]:
        return ["@cf/test/parrot"]


def entry(number: int, at: datetime, account_id: str = A, status: str = "stop", **fields: object) -> UsageEntry:
    base: dict = {
        "request_id": uuid7_floor(at)[:-6] + f"{number:06x}", "account_id": account_id, "api_token_id": "t" * 32,
        "model": "m", "revision": "r", "task": "text-generation", "pop": "p", "node_id": "n", "status": status,
        "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 5, "started_at": at, "ttft_ms": float(number),
        "duration_ms": 10.0 * number, "attempts": 1, "micro_neurons": 2_000_000, "is_stream": True,
        "is_useful": status == "stop",
    }  # fmt: skip
    return UsageEntry(**(base | fields))


async def summary(database: Database, account_id: str, since: datetime, until: datetime) -> MetricSummary:
    return await MetricSummaries(database, NoNodes()).get(account_id, since, until)  # type: ignore[arg-type]


async def test_summary_of_an_hour_has_a_point_per_minute(database: Database):
    entries = [entry(number, NOON + timedelta(minutes=number // 10)) for number in range(1, 101)]
    failed = [entry(200, NOON, status="timeout", ttft_ms=None, is_useful=False)]
    foreign = [entry(300, NOON, account_id=B)]
    await usage_entries.write(database, [*entries, *failed, *foreign])
    found = await summary(database, A, NOON, NOON + timedelta(hours=1))
    assert (found.step_s, len(found.series)) == (60, 60)
    assert [point.calls for point in found.series[:12]] == [10, *[10] * 9, 1, 0]
    assert found.series[0].errors == 1
    assert (found.totals.calls, found.totals.errors, found.totals.useful) == (101, 1, 100)
    assert (found.totals.prompt_tokens, found.totals.cached_tokens, found.totals.neurons) == (1010, 404, 202.0)
    assert found.totals.usd_per_useful == pytest.approx(found.totals.usd / 100)
    assert [(each.status, each.num) for each in found.errors] == [("timeout", 1)]
    assert found.latency.ttft_ms is not None
    assert (found.latency.ttft_ms.p50, found.latency.ttft_ms.p95, found.latency.ttft_ms.p99) == (50, 95, 99)
    assert found.latency.total_ms is not None
    assert found.latency.total_ms.p99 == 1000
    assert found.ready_models == ["@cf/test/parrot"]


async def test_summary_of_the_platform_adds_all_accounts(database: Database):
    await usage_entries.write(database, [entry(1, NOON), entry(2, NOON + timedelta(hours=3), account_id=B)])
    found = await summary(database, "", NOON - timedelta(hours=12), NOON + timedelta(hours=12))
    assert (found.step_s, len(found.series)) == (3600, 24)
    assert [point.at.hour for point in found.series if point.calls] == [12, 15]
    assert (found.totals.calls, found.latency.num_calls) == (2, 2)


async def test_longer_spans_have_hours_and_days(database: Database):
    week = await summary(database, A, NOON - timedelta(days=7), NOON)
    month = await summary(database, A, NOON - timedelta(days=30), NOON)
    assert (week.step_s, len(week.series)) == (3600, 168)
    assert (month.step_s, len(month.series)) == (86400, 31)  # the first and the last day are partial


async def test_empty_platform_has_a_summary_without_latency(database: Database):
    found = await summary(database, "", NOON, NOON + timedelta(hours=1))
    assert (found.totals.calls, found.totals.usd_per_useful, found.latency.ttft_ms) == (0, None, None)
    assert found.alerts == []


async def test_equal_requests_share_one_computation(sqlite_database: Database):
    summaries = MetricSummaries(sqlite_database, NoNodes())  # type: ignore[arg-type]
    first = await summaries.get("", NOON, NOON + timedelta(hours=1))
    await usage_entries.write(sqlite_database, [entry(1, NOON)])
    assert await summaries.get("", NOON, NOON + timedelta(hours=1)) is first
    assert (await summaries.get(A, NOON, NOON + timedelta(hours=1))).totals.calls == 1
