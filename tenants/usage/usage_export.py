"""Usage entries as files: CSV, or Parquet. Written page by page: a month of them takes no more memory than a page.

Amounts are whole micro-neurons, as the ledger has them. Knows columns; who may read them is somebody else's affair.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, Literal

from storage.database import Database
from storage.parquet import ColumnOf, Kind, ParquetWriter
from tenants.usage import usage_entries as usage
from tenants.usage.usage_entries import UsageEntry
from tenants.usage.usage_sums import Filter

Format = Literal["csv", "parquet"]

MEDIA_TYPES: dict[Format, str] = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}
_PAGE_ROWS = 5000
_KINDS: dict[object, Kind] = {"str": "text", "int": "int", "float": "float", "bool": "bool", "datetime": "time"}


def _column(name: str) -> ColumnOf:
    annotation, _, optional = str(UsageEntry.__annotations__[name]).partition(" | ")
    return ColumnOf(name, _KINDS[annotation], may_miss=optional == "None")


COLUMNS = tuple(_column(name) for name in UsageEntry.__struct_fields__)


async def export(
    database: Database, which: Filter, since: datetime, until: datetime, format: Format
) -> AsyncIterator[bytes]:
    """The file of a filter's calls begun from `since` to before `until`, oldest first, in pieces. Raises
    StoreUnavailable, perhaps in the middle: a Parquet file without its end cannot be read."""
    writer = _Csv() if format == "csv" else ParquetWriter(COLUMNS, f"hearth version {metadata.version('hearth')}")
    yield writer.begin()
    last: UsageEntry | None = None
    while entries := await usage.entries_between(database, which, since, until, after=last, limit=_PAGE_ROWS):
        yield writer.group([[getattr(entry, column.name) for column in COLUMNS] for entry in entries])
        last = entries[-1]
    yield writer.end()


class _Csv:
    """The same pieces as a ParquetWriter's, as lines."""

    def begin(self) -> bytes:
        return _lines([[column.name for column in COLUMNS]])

    def group(self, rows: Sequence[Sequence[Any]]) -> bytes:
        return _lines([[_text(value) for value in row] for row in rows])

    def end(self) -> bytes:
        return b""


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return value if value.startswith("@cf/") or value.startswith("@hf/") else f"'{value}"  # no formula of ours
    return value


def _lines(rows: Sequence[Sequence[Any]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode()
