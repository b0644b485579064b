"""Usage entries as a CSV or Parquet file, produced one page of rows at a time: memory does not grow with the export.

Amounts are whole micro-neurons, as in the ledger. Parquet needs the optional dependency pyarrow.
"""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from storage.database import Database
from tenants.usage import usage_entries
from tenants.usage.usage_entries import UsageEntry
from tenants.usage.usage_sums import Filter

Format = Literal["csv", "parquet"]

MEDIA_TYPES: dict[Format, str] = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}
COLUMNS = UsageEntry.__struct_fields__
_PAGE_ROWS = 100  # converted at once on the event loop, while other requests wait
_GROUP_ROWS = 1000  # rows per row group of a Parquet file; smaller groups make the file larger


class ParquetUnavailable(Exception):
    """pyarrow is not installed. The text says how to install it."""


class _Writer(Protocol):
    def begin(self) -> bytes: ...
    def rows(self, rows: Sequence[Sequence[Any]]) -> bytes: ...
    def end(self) -> bytes: ...


def export(database: Database, calls: Filter, since: datetime, until: datetime, format: Format) -> AsyncIterator[bytes]:
    """Return the pieces of a file with the calls that started in [since, until), oldest first.

    Raises ParquetUnavailable at once. Iterating raises StoreUnavailable, possibly after some pieces; a Parquet file
    without its last piece is unreadable.
    """
    return _pieces(database, calls, since, until, _Csv() if format == "csv" else _Parquet())


async def _pieces(
    database: Database, calls: Filter, since: datetime, until: datetime, writer: _Writer
) -> AsyncIterator[bytes]:
    yield writer.begin()
    last: UsageEntry | None = None
    while page := await usage_entries.entries_between(database, calls, since, until, after=last, limit=_PAGE_ROWS):
        yield writer.rows([[getattr(entry, column) for column in COLUMNS] for entry in page])
        last = page[-1]
    yield writer.end()


class _Csv:
    def begin(self) -> bytes:
        return _lines([COLUMNS])

    def rows(self, rows: Sequence[Sequence[Any]]) -> bytes:
        return _lines([[_text(value) for value in row] for row in rows])

    def end(self) -> bytes:
        return b""


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    # A leading quote keeps spreadsheets from evaluating a text as a formula; model ids are safe and stay as they are.
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return value if value.startswith(("@cf/", "@hf/")) else f"'{value}"
    return value


def _lines(rows: Sequence[Sequence[Any]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode()


class _Parquet:
    """Parquet pieces, one for each row group."""

    def __init__(self) -> None:
        """Open the writer. Raises ParquetUnavailable."""
        try:
            self._arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise ParquetUnavailable(
                "Parquet export needs pyarrow: install Hearth with `pip install 'hearth[parquet]'`, or export CSV"
            ) from None
        self._sink = _Sink()
        self._rows: list[Sequence[Any]] = []  # rows of the next row group
        self._schema = self._arrow.schema([self._field(name) for name in COLUMNS])
        self._writer = parquet.ParquetWriter(self._sink, self._schema, compression="zstd")

    def begin(self) -> bytes:
        return self._sink.take()

    def rows(self, rows: Sequence[Sequence[Any]]) -> bytes:
        self._rows += rows
        if len(self._rows) >= _GROUP_ROWS:
            self._write_group()
        return self._sink.take()

    def _write_group(self) -> None:
        columns = zip(zip(*self._rows), self._schema, strict=True)  # noqa: B905
        arrays = [self._arrow.array(column, field.type) for column, field in columns]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))
        self._rows.clear()

    def end(self) -> bytes:
        if self._rows:
            self._write_group()
        self._writer.close()
        return self._sink.take()

    def _field(self, name: str) -> Any:
        annotation, _, optional = str(UsageEntry.__annotations__[name]).partition(" | ")
        types = {
            "str": self._arrow.string(),
            "int": self._arrow.int64(),
            "float": self._arrow.float64(),
            "bool": self._arrow.bool_(),
            "datetime": self._arrow.timestamp("us", tz="UTC"),
        }
        return self._arrow.field(name, types[annotation], nullable=optional == "None")


class _Sink(io.RawIOBase):
    """A file that is consumed while it is written: `tell` counts all bytes, `take` returns those not yet taken."""

    def __init__(self) -> None:
        self._offset = 0
        self._untaken: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._untaken.append(bytes(data))
        self._offset += len(self._untaken[-1])
        return len(self._untaken[-1])

    def tell(self) -> int:
        return self._offset

    def take(self) -> bytes:
        data, self._untaken = b"".join(self._untaken), []
        return data
