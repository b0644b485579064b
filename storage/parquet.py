"""Writes Parquet: flat tables of numbers, texts, times and flags, one group of rows after the other, as bytes.

Format 1.0 as https://parquet.apache.org/docs/file-format/ has it: PLAIN values, one gzipped page for each column of a
group, the description in Thrift's compact protocol at the end. Enough for every reader, and no dependency of ours.
Knows no table.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Literal

Kind = Literal["text", "int", "float", "bool", "time"]

_MAGIC = b"PAR1"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# kind -> physical type, converted type
_TYPES: dict[Kind, tuple[int, int | None]] = {
    "text": (6, 0), "int": (2, None), "float": (5, None), "bool": (0, None), "time": (2, 10),
}  # fmt: skip
_PLAIN, _RLE, _GZIP = 0, 3, 2
_INT, _LONG, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12  # Thrift's compact types


@dataclass(frozen=True)
class ColumnOf:
    """A column: integers are of 64 bits, times aware. Only one that `may_miss` takes None."""

    name: str
    kind: Kind
    may_miss: bool = False


class ParquetWriter:
    """One file, as pieces to write one after the other: `begin`, any number of `group`, `end`."""

    def __init__(self, columns: Sequence[ColumnOf], created_by: str) -> None:
        self._columns = columns
        self._created_by = created_by
        self._groups: list[bytes] = []
        self._num_rows = 0
        self._offset = 0

    def begin(self) -> bytes:
        self._offset = len(_MAGIC)
        return _MAGIC

    def group(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """Some rows, at least one, each with a value for every column."""
        chunks: list[bytes] = []
        described: list[bytes] = []
        for column, values in zip(self._columns, zip(*rows, strict=True), strict=True):
            page, num_plain = _page(column, values)
            described.append(self._chunk(column, len(values), self._offset, len(page), num_plain))
            chunks.append(page)
            self._offset += len(page)
        size = sum(map(len, chunks))
        self._groups.append(_struct((1, _LIST, _list(_STRUCT, described)), (2, _LONG, size), (3, _LONG, len(rows))))
        self._num_rows += len(rows)
        return b"".join(chunks)

    def end(self) -> bytes:
        root = _struct((4, _BINARY, "schema"), (5, _INT, len(self._columns)))
        elements = [root, *map(_schema_element, self._columns)]
        footer = _struct(
            (1, _INT, 1),
            (2, _LIST, _list(_STRUCT, elements)),
            (3, _LONG, self._num_rows),
            (4, _LIST, _list(_STRUCT, self._groups)),
            (6, _BINARY, self._created_by),
        )
        return footer + len(footer).to_bytes(4, "little") + _MAGIC

    def _chunk(self, column: ColumnOf, num_values: int, offset: int, size: int, num_plain: int) -> bytes:
        facts = _struct(
            (1, _INT, _TYPES[column.kind][0]),
            (2, _LIST, _list(_INT, [_varint(_zigzag(_PLAIN)), _varint(_zigzag(_RLE))])),
            (3, _LIST, _list(_BINARY, [_binary(column.name)])),
            (4, _INT, _GZIP),
            (5, _LONG, num_values),
            (6, _LONG, num_plain),
            (7, _LONG, size),
            (9, _LONG, offset),
        )
        return _struct((2, _LONG, offset), (3, _STRUCT, facts))


def _page(column: ColumnOf, values: Sequence[Any]) -> tuple[bytes, int]:
    """A column's values as one page; and its size with the values not compressed."""
    there = [value for value in values if value is not None] if column.may_miss else values
    data = _PLAINS[column.kind](there)
    if column.may_miss:
        data = _levels([value is not None for value in values]) + data
    gzip = zlib.compressobj(6, zlib.DEFLATED, 31)
    packed = gzip.compress(data) + gzip.flush()
    about = _struct((1, _INT, len(values)), (2, _INT, _PLAIN), (3, _INT, _RLE), (4, _INT, _RLE))
    header = _struct((1, _INT, 0), (2, _INT, len(data)), (3, _INT, len(packed)), (5, _STRUCT, about))
    return header + packed, len(header) + len(data)


def _levels(is_there: list[bool]) -> bytes:
    """Which values there are, as one run of packed bits."""
    packed = _bits(is_there)
    run = _varint(len(packed) << 1 | 1) + packed
    return len(run).to_bytes(4, "little") + run


def _bits(flags: Sequence[bool]) -> bytes:
    """Eight to a byte, the first one lowest."""
    number = 0
    for place, flag in enumerate(flags):
        number |= bool(flag) << place
    return number.to_bytes(-(-len(flags) // 8), "little")


def _texts(values: Sequence[str]) -> bytes:
    encoded = [value.encode("utf-8", "surrogatepass") for value in values]
    return b"".join(chain.from_iterable((len(each).to_bytes(4, "little"), each) for each in encoded))


def _microseconds(time: datetime) -> int:
    since = time - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


_PLAINS: dict[Kind, Callable[[Sequence[Any]], bytes]] = {
    "text": _texts,
    "int": lambda values: struct.pack(f"<{len(values)}q", *values),
    "float": lambda values: struct.pack(f"<{len(values)}d", *values),
    "bool": _bits,
    "time": lambda values: struct.pack(f"<{len(values)}q", *map(_microseconds, values)),
}


def _schema_element(column: ColumnOf) -> bytes:
    physical, converted = _TYPES[column.kind]
    fields: list[tuple[int, int, Any]] = [
        (1, _INT, physical),
        (3, _INT, int(column.may_miss)),
        (4, _BINARY, column.name),
    ]
    return _struct(*fields, *(() if converted is None else ((6, _INT, converted),)))


# ── Thrift's compact protocol ──


def _struct(*fields: tuple[int, int, Any]) -> bytes:
    """Fields as (id, type, value) by rising id. Lists and structs come encoded."""
    parts: list[bytes] = []
    last = 0
    for id, kind, value in fields:
        assert 0 < id - last <= 15
        encoded = value if kind in (_LIST, _STRUCT) else _binary(value) if kind == _BINARY else _varint(_zigzag(value))
        parts += (bytes([(id - last) << 4 | kind]), encoded)
        last = id
    return b"".join([*parts, b"\0"])


def _list(kind: int, items: Iterable[bytes]) -> bytes:
    items = list(items)
    size = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + _varint(len(items))
    return size + b"".join(items)


def _binary(text: str) -> bytes:
    encoded = text.encode()
    return _varint(len(encoded)) + encoded


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
