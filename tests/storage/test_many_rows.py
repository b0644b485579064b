"""storage/many_rows.py on SQLite and on Postgres."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from storage.columns import sqlite_time
from storage.database import Database, uuid7
from storage.errors import Conflict
from storage.many_rows import MAX_ROWS, ManyRows
from tenants.tables import usage_entries
from tenants.usage.usage_entries import _FIELDS, _row
from tests.tenants.usage.made_entries import entry

ROWS = ManyRows(usage_entries, _FIELDS, key="request_id")


async def _insert(database: Database, rows: list[Any]) -> list[str]:
    async with database.transaction() as connection:
        return await ROWS.insert_new(connection, rows)


async def _found(database: Database) -> dict[str, Any]:
    async with database.connection() as connection:
        return {row["request_id"]: dict(row) for row in (await connection.execute(select(usage_entries))).mappings()}


@pytest.mark.parametrize("count", [0, 1, 3, MAX_ROWS, MAX_ROWS + 1])
async def test_any_number_of_rows_is_inserted_once(database: Database, count: int) -> None:
    rows = [_row(entry(uuid7())) for _ in range(count)]
    assert await _insert(database, rows) == [row[0] for row in rows]
    assert await _insert(database, rows) == []
    found = await _found(database)
    assert [tuple(found[row[0]][name] for name in _FIELDS) for row in rows] == rows


async def test_first_of_rows_with_one_key_is_inserted_and_existing_rows_stay(database: Database) -> None:
    old, twice, new = (_row(entry(id, completion_tokens=1)) for id in ("old", "twice", "new"))
    await _insert(database, [old])
    others = [_row(entry(id, completion_tokens=2)) for id in ("old", "twice")]
    assert sorted(await _insert(database, [others[0], twice, others[1], new])) == ["new", "twice"]
    assert {row["completion_tokens"] for row in (await _found(database)).values()} == {1}


async def test_times_are_stored_as_by_other_statements(database: Database) -> None:
    at = datetime(2026, 11, 20, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=2)))
    await _insert(database, [_row(entry("x", started_at=at))])
    (row,) = (await _found(database)).values()
    assert (row["started_at"], row["started_at"].tzinfo) == (at, UTC)


@pytest.mark.parametrize(
    "at",
    [
        datetime(2026, 11, 20, 1, 2, 3, tzinfo=UTC),
        datetime(999, 1, 2, 0, 0, 0, 7, tzinfo=UTC),
        datetime(2026, 1, 1, 0, 30, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    ],
)
def test_sqlite_time_equals_the_column_type_s_text(at: datetime) -> None:
    dialect = sqlite.dialect()  # type: ignore[no-untyped-call]
    of_the_column = usage_entries.c.started_at.type.dialect_impl(dialect).bind_processor(dialect)
    assert of_the_column is not None
    assert sqlite_time(at) == of_the_column(at)
    with pytest.raises(ValueError, match="time zone"):
        sqlite_time(at.replace(tzinfo=None))


async def test_invalid_row_rejects_the_whole_insert(database: Database) -> None:
    bad = [None if name == "status" else value for name, value in zip(_FIELDS, _row(entry("bad")), strict=True)]
    with pytest.raises((Conflict, DBAPIError)):
        await _insert(database, [_row(entry("good")), tuple(bad)])
    assert await _found(database) == {}
