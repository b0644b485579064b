"""storage/parquet.py, read by a reader of its own, made from the format's description; and by a real one where there is
one."""

from __future__ import annotations

import io
import struct
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.parquet import ColumnOf, ParquetWriter

COLUMNS = (
    ColumnOf("who", "text"),
    ColumnOf("count", "int"),
    ColumnOf("ratio", "float", may_miss=True),
    ColumnOf("is_good", "bool"),
    ColumnOf("at", "time"),
    ColumnOf("note", "text", may_miss=True),
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_rows = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.integers(-(2**63), 2**63 - 1),
        st.none() | st.floats(allow_nan=False),
        st.booleans(),
        st.datetimes(min_value=datetime(1800, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)),
        st.none() | st.just("é"),
    ),
    min_size=1,
    max_size=40,
)


def written(*groups: list[tuple[Any, ...]]) -> bytes:
    writer = ParquetWriter(COLUMNS, "test")
    return b"".join([writer.begin(), *map(writer.group, groups), writer.end()])


class Thrift:
    """The compact protocol, as plain values: structs are dicts by field id."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def varint(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def number(self) -> int:
        value = self.varint()
        return value >> 1 if not value & 1 else -(value >> 1) - 1

    def value(self, kind: int) -> Any:
        if kind in (5, 6):
            return self.number()
        if kind == 8:
            size = self.varint()
            self.at += size
            return self.data[self.at - size : self.at]
        if kind == 9:
            head = self.data[self.at]
            self.at += 1
            size = head >> 4 if head >> 4 < 15 else self.varint()
            return [self.value(head & 15) for _ in range(size)]
        assert kind == 12, kind
        return self.struct()

    def struct(self) -> dict[int, Any]:
        found: dict[int, Any] = {}
        last = 0
        while head := self.data[self.at]:
            self.at += 1
            last += head >> 4
            found[last] = self.value(head & 15)
        self.at += 1
        return found


def read(data: bytes) -> tuple[list[str], list[tuple[Any, ...]]]:
    assert data[:4] == data[-4:] == b"PAR1"
    size = int.from_bytes(data[-8:-4], "little")
    footer = Thrift(data[-8 - size : -8]).struct()
    elements = footer[2][1:]
    assert footer[2][0][5] == len(elements)
    rows: list[tuple[Any, ...]] = []
    for group in footer[4]:
        columns = [_values(data, chunk[3], element) for chunk, element in zip(group[1], elements, strict=True)]
        assert {len(column) for column in columns} == {group[3]}
        rows += zip(*columns, strict=True)
    assert len(rows) == footer[3]
    return [element[4].decode() for element in elements], rows


def _values(data: bytes, about: dict[int, Any], element: dict[int, Any]) -> list[Any]:
    reader = Thrift(data, about[9])
    header = reader.struct()
    assert reader.at - about[9] + header[3] == about[7]
    page = zlib.decompress(data[reader.at : reader.at + header[3]], 31)
    assert len(page) == header[2]
    there = [True] * header[5][1]
    if element[3]:
        levels = Thrift(page, 4)
        num_groups = levels.varint() >> 1
        bits = int.from_bytes(page[levels.at : levels.at + num_groups], "little")
        there = [bool(bits >> place & 1) for place in range(header[5][1])]
        page = page[4 + int.from_bytes(page[:4], "little") :]
    plain = iter(_plain(page, about[1], element.get(6), sum(there)))
    return [next(plain) if is_there else None for is_there in there]


def _plain(page: bytes, physical: int, converted: int | None, count: int) -> list[Any]:
    if physical == 0:
        return [bool(page[place // 8] >> place % 8 & 1) for place in range(count)]
    if physical == 6:
        texts, at = [], 0
        for _ in range(count):
            size = int.from_bytes(page[at : at + 4], "little")
            texts.append(page[at + 4 : at + 4 + size].decode())
            at += 4 + size
        return texts
    values = list(struct.unpack(f"<{count}{'d' if physical == 5 else 'q'}", page))
    return [EPOCH + timedelta(microseconds=value) for value in values] if converted == 10 else values


@settings(max_examples=12)
@given(st.lists(_rows, max_size=3))
def test_what_was_written_is_read(groups: list[list[tuple[Any, ...]]]) -> None:
    names, rows = read(written(*groups))
    assert names == [column.name for column in COLUMNS]
    assert rows == [row for group in groups for row in group]


def test_a_real_reader_reads_it() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        (f"n{number}", number, None if number % 3 else number / 2, number % 2 == 0, EPOCH, None) for number in range(99)
    ]
    found = parquet.read_table(io.BytesIO(written(rows[:50], rows[50:])))
    assert [tuple(row.values()) for row in found.to_pylist()] == [(*row[:4], EPOCH, None) for row in rows]
