"""tenants/usage/usage_export.py: the same calls as CSV and as Parquet."""

from __future__ import annotations

import csv
import io

import pytest

from storage.database import Database
from tenants.usage import usage_entries, usage_export
from tenants.usage.usage_sums import Filter
from tests.tenants.usage.made_entries import EVER, entry


async def exported(database: Database, format: usage_export.Format) -> bytes:
    return b"".join([piece async for piece in usage_export.export(database, Filter(None), *EVER, format)])


async def test_csv_export_has_one_line_per_call(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_export, "_PAGE_ROWS", 2)
    await usage_entries.write(database, [entry(f"request-{number}") for number in range(5)])
    lines = list(csv.DictReader(io.StringIO((await exported(database, "csv")).decode())))
    assert [line["request_id"] for line in lines] == [f"request-{number}" for number in range(5)]


async def test_parquet_export_has_one_row_per_call(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (pip install 'hearth[parquet]')")
    monkeypatch.setattr(usage_export, "_PAGE_ROWS", 2)
    entries = [entry(f"request-{number}") for number in range(5)]
    await usage_entries.write(database, entries)
    rows = parquet.read_table(io.BytesIO(await exported(database, "parquet"))).to_pylist()
    assert rows == [{name: getattr(each, name) for name in usage_export.COLUMNS} for each in entries]
