"""Is this a whole and honest safetensors file? Reads the header only, and believes nothing in it.

The format: 8 bytes little-endian length, that many bytes of JSON, then the tensors' bytes without gaps. Checked are
the length, every dtype, shape × size, that ranges lie inside the file, neither overlap nor leave holes. Values are not
looked at: those are the digest's business.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from catalog.errors import PublishError

MAX_HEADER_BYTES = 64 * 1024 * 1024
_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip
_MAX_DIMENSIONS = 8


def check_safetensors(path: Path) -> set[str]:
    """The names of the tensors in the file. Raises PublishError with the file's name and what is wrong."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        header_bytes = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or header_bytes > min(MAX_HEADER_BYTES, size_bytes - 8):
            raise PublishError(f"{path.name}: the header does not fit into the file")
        header = _parse(file.read(header_bytes), path.name)
    header.pop("__metadata__", None)
    ranges = sorted(_range(entry, path.name) for entry in header.values())
    end = 0
    for start, stop in ranges:
        if start != end:
            raise PublishError(f"{path.name}: tensors overlap or leave holes")
        end = stop
    if end != size_bytes - 8 - header_bytes:
        raise PublishError(f"{path.name}: the tensors do not fill the file")
    return set(header)


def _parse(text: bytes, file: str) -> dict[str, Any]:
    try:
        header = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise PublishError(f"{file}: unreadable header") from error
    if not isinstance(header, dict):
        raise PublishError(f"{file}: the header is not an object")
    return header


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("repeated name")
    return table


def _range(entry: Any, file: str) -> tuple[int, int]:
    """The byte range of one tensor, after the header. Its size must be what dtype and shape say."""
    if not isinstance(entry, dict) or not _is_counts(entry.get("shape")) or not _is_counts(entry.get("data_offsets")):
        raise PublishError(f"{file}: a tensor has no proper shape or offsets")
    bits = _BITS.get(str(entry.get("dtype")))
    if bits is None:
        raise PublishError(f"{file}: a tensor has a dtype that is not known")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if len(shape) > _MAX_DIMENSIONS or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise PublishError(f"{file}: a tensor has no proper shape or offsets")
    if offsets[1] - offsets[0] != math.prod(shape) * bits // 8:
        raise PublishError(f"{file}: a tensor's size is not what its dtype and shape say")
    return offsets[0], offsets[1]


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
