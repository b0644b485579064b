"""tenants/usage/usage_entries.py on both databases: one row per request id, and sums that add up."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.database import Database
from tenants.usage import usage_entries as usage
from tenants.usage import usage_sums
from tests.tenants.usage.made_entries import EVER, NOON, entry


async def test_entry_is_read_as_written(database: Database) -> None:
    entries = [entry("r1"), entry("r2", ttft_ms=None, is_stream=False, started_at=NOON + timedelta(seconds=1))]
    assert await usage.write(database, entries) == 2
    assert await usage.list_recent(database, "a" * 32) == entries[::-1]
    assert await usage.list_recent(database, "a" * 32, limit=1) == entries[1:]
    assert await usage.list_recent(database, "f" * 32) == []


async def test_repeated_entry_changes_nothing_and_only_new_entries_are_counted(database: Database) -> None:
    assert await usage.write(database, []) == 0
    assert await usage.write(database, [entry("r1"), entry("r1", completion_tokens=99), entry("r2")]) == 2
    assert await usage.write(database, [entry("r2", completion_tokens=99), entry("r3")]) == 1
    recent = await usage.list_recent(database, "a" * 32)
    assert {found.request_id: found.completion_tokens for found in recent} == {"r1": 5, "r2": 5, "r3": 5}


async def test_concurrent_writers_store_every_entry_once(database: Database) -> None:
    entries = [entry(f"r{number}") for number in range(1200)]
    counts = await asyncio.gather(*(usage.write(database, entries[start:]) for start in (0, 300, 600)))
    assert sum(counts) == 1200
    [total] = await usage_sums.total(database, usage_sums.Filter("a" * 32), *EVER)
    assert (total.num_calls, total.prompt_tokens, total.micro_neurons) == (1200, 24_000, 1200 * 1_234_567_890_123)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("model", {"@cf/hearth/minilm": 1, "@cf/hearth/spark": 3}),
        ("day", {"2026-11-20": 2, "2026-11-21": 2}),
        ("token", {"b" * 32: 3, "d" * 32: 1}),
    ],
)
async def test_totals_are_grouped_by_model_utc_day_and_token(
    database: Database, by: Any, expected: dict[str, int]
) -> None:
    late = datetime(2026, 11, 20, 23, 59, 59, 999999, tzinfo=UTC)
    entries = [
        entry("r1"),
        entry("r2", started_at=late, api_token_id="d" * 32),
        entry("r3", started_at=late + timedelta(microseconds=1), model="@cf/hearth/minilm"),
        entry("r4", started_at=late + timedelta(hours=3)),
        entry("r5", account_id="e" * 32),
    ]
    await usage.write(database, entries)
    totals = await usage_sums.total(database, usage_sums.Filter("a" * 32), *EVER, by=by)
    assert {total.key: total.num_calls for total in totals} == expected
    assert all(total.completion_tokens == 5 * total.num_calls for total in totals)


async def test_period_includes_its_start_and_excludes_its_end(database: Database) -> None:
    await usage.write(database, [entry(f"r{hour}", started_at=NOON + timedelta(hours=hour)) for hour in range(5)])
    [total] = await usage_sums.total(
        database, usage_sums.Filter("a" * 32), NOON + timedelta(hours=1), NOON + timedelta(hours=3)
    )
    assert total.num_calls == 2
    assert await usage_sums.total(database, usage_sums.Filter("a" * 32), NOON - timedelta(days=2), NOON) == []


async def test_too_long_text_is_shortened_and_the_row_is_written(database: Database) -> None:
    await usage.write(database, [entry("r1", node_id="n\0ode" * 100, pop="p" * 500)])
    [found] = await usage.list_recent(database, "a" * 32)
    assert found.node_id == ("node" * 100)[:128]
    assert found.pop == "p" * 64


@given(
    st.builds(
        entry,
        st.text(min_size=1, max_size=40),
        model=st.text(max_size=50),
        prompt_tokens=st.integers(0, 1 << 40),
        ttft_ms=st.none() | st.floats(0, 1e9),
        started_at=st.datetimes(timezones=st.just(UTC)),
    )
)
def test_spool_record_round_trip(one: usage.UsageEntry) -> None:
    assert usage.decode(usage.encode(one)) == one


@pytest.mark.parametrize("record", [b"", b"\x00", b"{}", b"\x80", usage.encode(entry("r1"))[:-1]])
def test_invalid_record_is_rejected(record: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        usage.decode(record)


def test_naive_time_is_rejected_before_spooling() -> None:
    with pytest.raises(ValueError, match="zone"):
        usage.encode(entry("r1", started_at=datetime(2026, 1, 1)))


async def test_percentiles_cover_the_newest_calls_of_each_model(database: Database) -> None:
    entries = [
        entry(
            f"r{number:03}", duration_ms=float(number), ttft_ms=number / 2, started_at=NOON + timedelta(seconds=number)
        )
        for number in range(1, 101)
    ]
    entries.append(entry("m1", model="@cf/hearth/minilm", duration_ms=7.0, ttft_ms=None))
    await usage.write(database, entries)
    minilm, spark = await usage.latencies(database, usage_sums.Filter("a" * 32), *EVER)
    assert minilm == usage.Latency("@cf/hearth/minilm", 1, None, (7.0, 7.0, 7.0))
    assert spark == usage.Latency("@cf/hearth/spark", 100, (25.0, 47.5, 49.5), (50.0, 95.0, 99.0))
    [newest] = await usage.latencies(database, usage_sums.Filter("a" * 32), *EVER, at_most=10)
    assert (newest.num_calls, newest.total_ms) == (10, (95.0, 100.0, 100.0))


async def test_entries_are_paged_oldest_first(database: Database) -> None:
    entries = [entry(f"r{number}", started_at=NOON + timedelta(seconds=number // 2)) for number in range(7)]
    await usage.write(database, entries)
    found: list[usage.UsageEntry] = []
    while page := await usage.entries_between(
        database, usage_sums.Filter("a" * 32), *EVER, after=found[-1] if found else None, limit=3
    ):
        found += page
    assert found == entries
    recent = await usage.list_recent(database, "a" * 32, 3, before="r4")
    assert [one.request_id for one in recent] == ["r3", "r2", "r1"]
