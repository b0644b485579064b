"""Column types and row ids shared by all tables.

Times are aware UTC on both databases. Ids are text, so that they look the same in logs, URLs and rows.
"""

from __future__ import annotations

import os
import secrets
import time
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Column, ColumnElement, DateTime, Integer, String, literal_column
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

_NAIVE = "a time stored in the database must have a time zone"


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time with microsecond precision. Rejects naive times with ValueError."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(_NAIVE)
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def only_row() -> Column[int]:
    """Return the primary key column of a table that has a single row, with id 1."""
    return Column("id", Integer, primary_key=True, autoincrement=False)


def sqlite_time(value: datetime) -> str:
    """Return the text that SQLite stores for a UtcDateTime. The texts sort in the order of the times."""
    if value.tzinfo is None:
        raise ValueError(_NAIVE)
    return value.astimezone(UTC).isoformat(" ", "microseconds").removesuffix("+00:00")


class utc_day(FunctionElement[str]):  # noqa: N801  named like an SQL function
    """The UTC day of a UtcDateTime column as `YYYY-MM-DD` text, on both databases."""

    type = String()
    name = "utc_day"
    inherit_cache = True


@compiles(utc_day, "sqlite")
def _utc_day_sqlite(element: utc_day, compiler: SQLCompiler, **kw: Any) -> str:
    return f"strftime('%Y-%m-%d', {compiler.process(element.clauses, **kw)})"


@compiles(utc_day, "postgresql")
def _utc_day_postgresql(element: utc_day, compiler: SQLCompiler, **kw: Any) -> str:
    return f"to_char({compiler.process(element.clauses, **kw)} AT TIME ZONE 'UTC', 'YYYY-MM-DD')"


class utc_floor(FunctionElement[datetime]):  # noqa: N801
    """A UtcDateTime column truncated to its UTC minute, hour or day: `utc_floor(column, "hour")`."""

    type = UtcDateTime()
    name = "utc_floor"
    inherit_cache = True

    def __init__(self, column: ColumnElement[datetime], unit: Literal["minute", "hour", "day"]) -> None:
        super().__init__(column, literal_column(f"'{unit}'"))


# SQLite stores a time as text with microseconds.
_SQLITE_FLOORS = {
    "'minute'": "%Y-%m-%d %H:%M:00.000000",
    "'hour'": "%Y-%m-%d %H:00:00.000000",
    "'day'": "%Y-%m-%d 00:00:00.000000",
}


@compiles(utc_floor, "sqlite")
def _utc_floor_sqlite(element: utc_floor, compiler: SQLCompiler, **kw: Any) -> str:
    column, unit = element.clauses
    return f"strftime('{_SQLITE_FLOORS[compiler.process(unit)]}', {compiler.process(column, **kw)})"


@compiles(utc_floor, "postgresql")
def _utc_floor_postgresql(element: utc_floor, compiler: SQLCompiler, **kw: Any) -> str:
    column, unit = element.clauses
    return f"date_trunc({compiler.process(unit)}, {compiler.process(column, **kw)}, 'UTC')"


def new_id_hex() -> str:
    """Return a new random id of 32 lowercase hex characters, used for accounts and API tokens."""
    return secrets.token_hex(16)


def uuid7() -> str:
    """Return a new UUIDv7. UUIDv7 ids sort by creation time, to the millisecond."""
    return _uuid7_text(time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big"))


def uuid7_floor(moment: datetime) -> str:
    """Return the smallest UUIDv7 of the given millisecond: ids created earlier sort below this id, later ids do not."""
    return _uuid7_text(int(moment.timestamp() * 1000) << 80)


def _uuid7_text(value: int) -> str:
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
