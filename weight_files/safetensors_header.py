"""Validate a safetensors file's header and locate its tensors. The header is untrusted.

Format: 8 bytes little-endian length, that many bytes of JSON, then the tensors' bytes without gaps. Checks length,
names, types, shape × size, and that the ranges fill the file without overlap or gap. Publishing and loading both use
these checks. Reads no values and needs no device library.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

MAX_HEADER_BYTES = 32 * 1024 * 1024  # enough for 200,000 tensors with long names
_MAX_DIMENSIONS = 8
_ZIP = b"PK\x03\x04"

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip

# The structure of every header. Deeper or other values end the parse before they use memory.
_Values = dict[str, dict[str, str | Annotated[list[int], msgspec.Meta(max_length=_MAX_DIMENSIONS)]]]


class HeaderError(Exception):
    """The file is not a valid safetensors file; the text names the file, the tensor and the reason."""


@dataclass(frozen=True)
class Extent:
    """One tensor: `size_bytes` bytes at `offset` from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


def read_header(path: Path) -> dict[str, Extent]:
    """Return every tensor of a file by name, validated. Raises HeaderError."""
    try:
        if not path.is_file():  # opening a pipe would block
            raise HeaderError(f"{path.name} is missing or not a file")
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            header_bytes = header_size(prefix, path.name, file_bytes)
            text = file.read(header_bytes)
    except OSError as error:
        raise HeaderError(f"{path.name} cannot be read: {error.strerror}") from None
    return parse_header(text, path.name, file_bytes)


def header_size(prefix: bytes, name: str, file_bytes: int) -> int:
    """Return the number of header bytes after the first eight, for a file of `file_bytes`. Raises HeaderError."""
    if prefix.startswith(_ZIP):
        raise HeaderError(f"{name} is a ZIP archive as written by torch.save: pickled data is never loaded")
    header_bytes = int.from_bytes(prefix[:8], "little")
    if len(prefix) < 8 or header_bytes > file_bytes - 8:
        raise HeaderError(f"{name}: header of {header_bytes} bytes in a file of {file_bytes}")
    if header_bytes > MAX_HEADER_BYTES:
        raise HeaderError(f"{name}: header of {header_bytes} bytes; at most {MAX_HEADER_BYTES} are supported")
    return header_bytes


def parse_header(text: bytes, name: str, file_bytes: int) -> dict[str, Extent]:
    """Return the tensors in the header `text` of a file of `file_bytes`. Raises HeaderError."""
    header = _parse(text, name)
    header.pop("__metadata__", None)
    data_start = 8 + len(text)
    extents = {
        tensor: _extent(f"{name}: {tensor[:200]!r}", value, data_start, file_bytes - data_start)
        for tensor, value in header.items()
    }
    end = data_start
    for tensor, extent in sorted(extents.items(), key=lambda item: (item[1].offset, item[1].size_bytes)):
        if extent.offset != end:
            raise HeaderError(f"{name}: {tensor[:200]!r} overlaps the previous tensor or leaves a gap after it")
        end += extent.size_bytes
    if end != file_bytes:
        raise HeaderError(f"{name}: {file_bytes - end} bytes belong to no tensor")
    return extents


def parse_object(text: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object without repeated names. Raises HeaderError."""

    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise HeaderError(f"{where}: a name is repeated")
        return found

    try:
        value = json.loads(text, object_pairs_hook=without_repeats)
    except (ValueError, RecursionError):
        raise HeaderError(f"{where}: not JSON") from None
    if not isinstance(value, dict):
        raise HeaderError(f"{where}: not a JSON object")
    return value


def _parse(text: bytes, file: str) -> dict[str, Any]:
    try:
        msgspec.json.decode(text, type=_Values)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HeaderError(f"{file}: the header is not a safetensors header: {error}") from None
    return parse_object(text, f"{file}: the header")


def _extent(where: str, value: dict[str, Any], data_start: int, data_bytes: int) -> Extent:
    if set(value) != {"dtype", "shape", "data_offsets"}:
        raise HeaderError(f"{where}: expected dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise HeaderError(f"{where}: unknown type {str(dtype)[:50]!r}")
    if not _is_sizes(shape):
        raise HeaderError(f"{where}: invalid shape {str(shape)[:100]}")
    if not _is_sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
        raise HeaderError(f"{where}: offsets {str(offsets)[:100]} lie outside {data_bytes} bytes of data")
    size_bits = math.prod(shape) * BITS[dtype]
    if size_bits % 8 or offsets[1] - offsets[0] != size_bits // 8:
        raise HeaderError(f"{where}: {offsets[1] - offsets[0]} bytes for a {dtype} of shape {shape}")
    return Extent(dtype, tuple(shape), data_start + offsets[0], size_bits // 8)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 63 for size in value)
