"""tenants/usage/usage_sums.py on both databases: each call is counted in exactly one sum, whatever is folded."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from storage.database import Database, uuid7, uuid7_floor
from tenants.usage import usage_entries as usage
from tenants.usage import usage_sums
from tenants.usage.usage_sums import Filter
from tests.tenants.usage.made_entries import EVER, NOON, entry

MINE = Filter("a" * 32)


async def _by(database: Database, by: usage_sums.Group, which: Filter = MINE) -> dict[str, int]:
    return {total.key: total.num_calls for total in await usage_sums.total(database, which, *EVER, by=by)}


async def test_total_has_every_sum(database: Database) -> None:
    figures = {"device_us": 7, "bytes_in": 10, "bytes_out": 30, "num_tool_calls": 2, "attempts": 2}
    await usage.write(database, [entry("r1", is_useful=True, **figures), entry("r2", is_useful=True, num_retried=1)])
    [total] = await usage_sums.total(database, MINE, *EVER)
    assert (total.num_calls, total.num_useful, total.num_attempts) == (2, 1, 3)
    assert (total.device_us, total.bytes_in, total.bytes_out, total.num_tool_calls) == (7, 10, 30, 2)
    assert total.micro_neurons_per_useful == total.micro_neurons == 2 * 1_234_567_890_123


async def test_totals_are_grouped_and_filtered(database: Database) -> None:
    await usage.write(
        database,
        [
            entry("r1", pop="fra", started_at=NOON + timedelta(seconds=59)),
            entry("r2", status="length", started_at=NOON + timedelta(minutes=59, seconds=59)),
            entry("r3", api_token_id="d" * 32, started_at=NOON + timedelta(minutes=60)),
            entry("r4", account_id="e" * 32),
        ],
    )
    assert await _by(database, "hour") == {"2026-11-20T12:00Z": 2, "2026-11-20T13:00Z": 1}
    assert await _by(database, "minute") == {"2026-11-20T12:00Z": 1, "2026-11-20T12:59Z": 1, "2026-11-20T13:00Z": 1}
    assert await _by(database, "pop") == {"fra": 1, "lis": 2}
    assert await _by(database, "status") == {"length": 1, "stop": 2}
    assert await _by(database, "task", Filter("a" * 32, pop="lis", api_token_id="d" * 32)) == {"text-generation": 1}
    assert await _by(database, "account", Filter(None)) == {"a" * 32: 3, "e" * 32: 1}
    assert await _by(database, "model", Filter("a" * 32, status="error")) == {}
    assert await usage_sums.micro_neurons(database, ["a" * 32, "f" * 32], *EVER) == {
        ("a" * 32, "b" * 32): 2 * 1_234_567_890_123,
        ("a" * 32, "d" * 32): 1_234_567_890_123,
    }


async def test_folding_counts_every_call_once_including_late_ones(database: Database) -> None:
    day = timedelta(days=1)
    times = [NOON + timedelta(minutes=minutes) for minutes in (0, 1, 59, 60, 60 * 13)]
    await usage.write(database, [entry(f"r{number}", started_at=at) for number, at in enumerate(times)])
    by_day = {"2026-11-20": 4, "2026-11-21": 1}
    assert await _by(database, "day") == by_day
    assert await usage_sums.fold(database, "minute", NOON + day) == 5
    assert await _by(database, "day") == by_day
    assert await _by(database, "hour") == {"2026-11-20T12:00Z": 3, "2026-11-20T13:00Z": 1, "2026-11-21T01:00Z": 1}
    await usage.write(database, [entry("late", started_at=NOON), entry("r0", started_at=NOON)])
    assert await usage_sums.fold(database, "minute", NOON) == 0
    assert await usage_sums.fold(database, "minute", NOON + day) == 1
    assert await usage_sums.fold(database, "hour", NOON + timedelta(hours=2)) == 2
    assert await _by(database, "day") == by_day | {"2026-11-20": 5}
    assert await _by(database, "hour") == {"2026-11-20T00:00Z": 5, "2026-11-21T01:00Z": 1}


async def test_concurrent_writes_and_folds_count_every_call_once(database: Database) -> None:
    entries = [entry(f"r{number:03}", started_at=NOON + timedelta(seconds=20 * number)) for number in range(45)]

    async def write(part: int) -> None:
        for one in entries[part::3]:
            await usage.write(database, [one])

    async def fold() -> None:
        for _ in range(4):
            await usage_sums.fold(database, "minute", EVER[1])
            await usage_sums.fold(database, "hour", EVER[1])

    await asyncio.gather(*(write(part) for part in range(3)), fold(), fold())
    assert await _by(database, "day") == {"2026-11-20": 45}


async def test_deleted_entries_keep_their_sums(database: Database) -> None:
    now = datetime.now(UTC)
    await usage.write(database, [entry(uuid7(), started_at=now - timedelta(hours=hours)) for hours in range(4)])
    soon = now + timedelta(minutes=1)
    assert await usage_sums.forget_entries(database, now - timedelta(minutes=30)) == 0, "their ids are of this minute"
    assert await usage_sums.forget_entries(database, soon, at_most=2) == 2
    assert await usage_sums.forget_entries(database, soon, at_most=2) == 2
    assert await usage_sums.forget_entries(database, soon) == 0
    assert await usage.list_recent(database, "a" * 32) == []
    assert sum((await _by(database, "day")).values()) == 4


def test_ids_sort_by_creation_time() -> None:
    before = datetime.now(UTC)
    made = uuid7()
    assert uuid7_floor(before - timedelta(milliseconds=1)) < made < uuid7_floor(before + timedelta(seconds=10))


@pytest.mark.parametrize(
    ("moment", "month"),
    [(datetime(2026, 12, 31, 23, 59, tzinfo=UTC), (12, 1)), (datetime(2026, 1, 31, tzinfo=UTC), (1, 2))],
)
def test_month_starts_with_its_first_day(moment: datetime, month: tuple[int, int]) -> None:
    first, next_first = usage_sums.month_of(moment)
    assert (first.month, next_first.month) == month
    assert first.day == next_first.day == 1
