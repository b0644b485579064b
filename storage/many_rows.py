"""Bulk inserts: many rows in one statement, without SQLAlchemy's per-row overhead.

A row is a tuple of its columns. Only columns whose type needs it are converted, and the statement's text is built
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.schema import Table
from sqlalchemy.types import Boolean, String, TypeEngine

from storage.columns import UtcDateTime, sqlite_time

MAX_ROWS = 128
_MAX_VARIABLES = 32_766  # SQLite's limit per statement

Row = tuple[Any, ...]
_Convert = Callable[[Any], Any]


class ManyRows:
    """Inserts rows into `table`, each a tuple of the columns `names`. A row whose `key` exists is skipped."""

    def __init__(self, table: Table, names: Sequence[str], *, key: str) -> None:
        self._table = table
        self._columns = [table.c[name] for name in names]
        self._key = key
        self._max_rows = min(MAX_ROWS, _MAX_VARIABLES // len(names))
        self._converters: dict[str, list[tuple[int, _Convert]]] = {}
        self._texts: dict[int, str] = {}  # by number of rows; 0 is the statement for Postgres

    async def insert_new(self, connection: AsyncConnection, rows: Sequence[Row]) -> list[Any]:
        """Insert rows and return the keys of the new rows. Of rows with equal keys, the first is inserted. Raises the
        exceptions of the connection's `execute`."""
        new: list[Any] = []
        for start in range(0, len(rows), self._max_rows):
            chunk = self._converted(rows[start : start + self._max_rows], connection.dialect)
            statement, values = self._sqlite(chunk) if connection.dialect.name == "sqlite" else self._postgresql(chunk)
            new += (await connection.exec_driver_sql(statement, values)).scalars().all()
        return new

    def _converted(self, rows: Sequence[Row], dialect: Dialect) -> Sequence[Row]:
        """Return the rows with values as the driver accepts them."""
        converters = self._converters.get(dialect.name)
        if converters is None:
            by_column = [_converter(column.type, dialect) for column in self._columns]
            converters = [(at, convert) for at, convert in enumerate(by_column) if convert is not None]
            self._converters[dialect.name] = converters
        converted = []
        for row in rows:
            values = list(row)
            for at, convert in converters:
                values[at] = convert(values[at])
            converted.append(tuple(values))
        return converted

    def _sqlite(self, rows: Sequence[Row]) -> tuple[str, Row]:
        """Return a statement with a list of rows, padded to the next power of two by repeating the last row, so that
        few statements must be prepared."""
        size = min(1 << (len(rows) - 1).bit_length(), self._max_rows)
        text = self._texts.get(size)
        if text is None:
            row = f"({', '.join('?' * len(self._columns))})"
            text = self._texts[size] = f"{self._head} VALUES {', '.join([row] * size)} {self._tail}"
        return text, tuple(chain(*rows, *[rows[-1]] * (size - len(rows))))

    def _postgresql(self, rows: Sequence[Row]) -> tuple[str, Row]:
        """Return a statement with one array per column, for any number of rows."""
        text = self._texts.get(0)
        if text is None:
            dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
            # A cast to VARCHAR(n) would truncate; without the length, values that are too long are rejected as in any
            # INSERT.
            names = [
                "VARCHAR" if isinstance(each.type, String) else each.type.compile(dialect) for each in self._columns
            ]
            arrays = ", ".join(f"${number}::{name}[]" for number, name in enumerate(names, 1))
            text = self._texts[0] = f"{self._head} SELECT * FROM unnest({arrays}) {self._tail}"  # noqa: S608 - of our tables
        return text, tuple(map(list, zip(*rows, strict=True)))

    @property
    def _head(self) -> str:
        names = ", ".join(f'"{column.name}"' for column in self._columns)
        return f'INSERT INTO "{self._table.name}" ({names})'

    @property
    def _tail(self) -> str:
        return f'ON CONFLICT ("{self._key}") DO NOTHING RETURNING "{self._key}"'


def _converter(kind: TypeEngine[Any], dialect: Dialect) -> _Convert | None:
    """Return the conversion of a value for the driver; None if it needs none."""
    if isinstance(kind, Boolean):
        return None  # drivers accept booleans
    if isinstance(kind, UtcDateTime) and dialect.name == "sqlite":
        return sqlite_time  # the type's own conversion takes three function calls
    return kind.dialect_impl(dialect).bind_processor(dialect)
