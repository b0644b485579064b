"""tenants/usage/usage_upkeep.py: old entries are deleted, but not because of a wrong clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from storage.database import Database, uuid7_floor
from tenants.usage import usage_entries as usage
from tenants.usage import usage_sums
from tenants.usage.usage_sums import Filter
from tenants.usage.usage_upkeep import UsageMaintenance, UsageRetention
from tests.tenants.hand_clock import HandClock
from tests.tenants.usage.made_entries import EVER, entry

MINE = Filter("a" * 32)


class ClockOfToday(HandClock):
    """A clock that is advanced by hand and starts at the current time."""

    def __init__(self) -> None:
        super().__init__()
        self._now = datetime.now(UTC)


@pytest.mark.parametrize("wrong_by", [timedelta(), timedelta(days=40), timedelta(days=-40)])
@pytest.mark.parametrize("is_wrong_from_the_start", [False, True])
async def test_entries_are_deleted_only_by_correct_clocks(
    sqlite_database: Database, wrong_by: timedelta, is_wrong_from_the_start: bool
):
    database, clock, now = sqlite_database, ClockOfToday(), datetime.now(UTC)
    begun = [now - timedelta(days=days) for days in (1, 34, 36)]
    await usage.write(database, [entry(uuid7_floor(at), started_at=at) for at in begun])
    if is_wrong_from_the_start:
        clock.jump_wall(wrong_by.total_seconds())
    upkeep = UsageMaintenance(database, clock, UsageRetention())
    if not is_wrong_from_the_start:
        clock.jump_wall(wrong_by.total_seconds())
    await upkeep.turn()
    left = {each.request_id for each in await usage.list_recent(database, "a" * 32)}
    is_behind = is_wrong_from_the_start and wrong_by < timedelta()
    assert left == {uuid7_floor(at) for at in (begun if is_behind else begun[:2])}
    assert sum(total.num_calls for total in await usage_sums.total(database, MINE, *EVER)) == 3


async def test_database_returns_its_clock(database: Database):
    before, result, after = datetime.now(UTC), await database.now(), datetime.now(UTC)
    assert before - timedelta(seconds=1) <= result <= after + timedelta(seconds=1)
