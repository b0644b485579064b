"""Safetensors on disk -> parameters in place. The one door through which weights enter.

Headers are checked before a byte of data is read: sizes, types, offsets in range, no overlap, no hole. Data then goes
straight into its destination by parallel positioned reads, converted on the way only where the type differs. Never
unpickles, never maps a file, never runs anything a checkpoint brings. Knows nothing of architectures.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_MAX_HEADER_BYTES = 100_000_000
_PIECE_BYTES = 8 * 1024 * 1024
_MAX_THREADS = 8
_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"

_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
_LOADABLE = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


class WeightsError(Exception):
    """The checkpoint is damaged, incomplete or not what its config says; the text names the file and tensor."""


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: `offset` bytes from the start of the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Checkpoint:
    """The checked headers of all shards."""

    entries: Mapping[str, TensorEntry]

    @property
    def dtype(self) -> torch.dtype:
        """The floating type that most bytes have."""
        sizes = dict.fromkeys(_LOADABLE, 0)
        for entry in self.entries.values():
            if entry.dtype in sizes:
                sizes[entry.dtype] += entry.size_bytes
        return _LOADABLE[max(sizes, key=lambda name: sizes[name])]

    def without(self, prefixes: tuple[str, ...]) -> Checkpoint:
        """The same less tensors whose names begin with one of `prefixes`."""
        return Checkpoint({name: entry for name, entry in self.entries.items() if not name.startswith(prefixes)})


def open_checkpoint(model_dir: Path) -> Checkpoint:
    """Read and check the headers of `model.safetensors` or of the shards its index names. Raises WeightsError."""
    if (model_dir / _SINGLE_FILE).exists():
        return Checkpoint(read_header(model_dir / _SINGLE_FILE))
    index_path = model_dir / _INDEX_FILE
    if not index_path.exists():
        raise WeightsError(f"neither {_SINGLE_FILE} nor {_INDEX_FILE} is there; no other format is read")
    entries: dict[str, TensorEntry] = {}
    shards: dict[str, dict[str, TensorEntry]] = {}
    for name, shard in _read_index(index_path).items():
        if shard not in shards:
            shards[shard] = read_header(model_dir / shard)
        if name not in shards[shard]:
            raise WeightsError(f"{_INDEX_FILE}: {shard} does not contain {name}")
        entries[name] = shards[shard][name]
    return Checkpoint(entries)


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Every tensor of one file, checked. Raises WeightsError."""
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            header_bytes = int.from_bytes(file.read(8), "little")
            if file_bytes < 8 or header_bytes > min(_MAX_HEADER_BYTES, file_bytes - 8):
                raise WeightsError(f"{path.name}: header of {header_bytes} bytes in a file of {file_bytes}")
            text = file.read(header_bytes)
    except OSError as error:
        raise WeightsError(f"{path.name} cannot be read: {error.strerror}") from None
    header = _parse_object(text, path.name)
    header.pop("__metadata__", None)
    data_start, data_bytes = 8 + header_bytes, file_bytes - 8 - header_bytes
    entries = {name: _entry(path, name, value, data_start, data_bytes) for name, value in header.items()}
    end = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].size_bytes)):
        if entry.offset != end:
            raise WeightsError(f"{path.name}: {name} overlaps its neighbour or leaves a hole before it")
        end += entry.size_bytes
    if end != file_bytes:
        raise WeightsError(f"{path.name}: {file_bytes - end} bytes belong to no tensor")
    return entries


def check(checkpoint: Checkpoint, destinations: Mapping[str, torch.Tensor]) -> None:
    """Every destination has its tensor, of that shape and of a type we convert, and no tensor is left over.

    Raises WeightsError. Destinations may be on the meta device: nothing is read.
    """
    for name, destination in destinations.items():
        entry = checkpoint.entries.get(name)
        if entry is None:
            raise WeightsError(f"tensor {name} is missing")
        if entry.shape != tuple(destination.shape):
            raise WeightsError(f"{name} has shape {list(entry.shape)}, the config says {list(destination.shape)}")
        if entry.dtype not in _LOADABLE:
            raise WeightsError(f"{name} has type {entry.dtype}; {', '.join(_LOADABLE)} can be loaded")
    for name in checkpoint.entries.keys() - destinations.keys():
        is_harmless = name == "lm_head.weight" or name.endswith(".rotary_emb.inv_freq")  # tied, recomputed
        if not is_harmless:
            raise WeightsError(f"tensor {name} has no place in this architecture")


def load(checkpoint: Checkpoint, destinations: Mapping[str, torch.Tensor]) -> None:
    """Fill every destination. Raises WeightsError; what was filled by then must be thrown away."""
    check(checkpoint, destinations)
    with ExitStack() as stack:
        files = {path: stack.enter_context(_opened(path)) for path in _paths(checkpoint, destinations)}
        pool = stack.enter_context(ThreadPoolExecutor(min(_MAX_THREADS, (os.cpu_count() or 1) + 1), "weights"))
        reads = [
            pool.submit(_read_rows, files[entry.path], entry, name, destination, first, last)
            for name, destination in destinations.items()
            for entry in (checkpoint.entries[name],)
            for first, last in _pieces(entry)
        ]
        for read in reads:
            read.result()


def _paths(checkpoint: Checkpoint, destinations: Mapping[str, torch.Tensor]) -> set[Path]:
    return {checkpoint.entries[name].path for name in destinations}


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise WeightsError(f"{path.name} cannot be read: {error.strerror}") from None
    try:
        yield fd
    finally:
        os.close(fd)


def _pieces(entry: TensorEntry) -> Iterator[tuple[int, int]]:
    """Ranges of rows (of the first dimension) of about `_PIECE_BYTES`."""
    num_rows = entry.shape[0] if entry.shape else 1
    rows = max(1, _PIECE_BYTES * num_rows // max(entry.size_bytes, 1))
    for first in range(0, num_rows, rows):
        yield first, min(first + rows, num_rows)


def _read_rows(fd: int, entry: TensorEntry, name: str, destination: torch.Tensor, first: int, last: int) -> None:
    num_rows = entry.shape[0] if entry.shape else 1
    row_bytes = entry.size_bytes // num_rows
    rows = destination[first:last] if entry.shape else destination
    dtype = _LOADABLE[entry.dtype]
    is_direct = rows.dtype == dtype and rows.is_contiguous()
    target = rows if is_direct else torch.empty(rows.shape, dtype=dtype)
    buffer = memoryview(target.reshape(-1).view(torch.uint8).numpy().data)
    offset = entry.offset + first * row_bytes
    while len(buffer):
        count = os.preadv(fd, [buffer], offset)
        if count == 0:
            raise WeightsError(f"{entry.path.name} ends inside {name}")
        buffer, offset = buffer[count:], offset + count
    if not is_direct:
        rows.copy_(target)


def _entry(path: Path, name: str, value: Any, data_start: int, data_bytes: int) -> TensorEntry:
    where = f"{path.name}: {name[:200]}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise WeightsError(f"{where}: expected dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise WeightsError(f"{where}: unknown type {dtype!r}")
    if not _is_sizes(shape) or len(shape) > 8:
        raise WeightsError(f"{where}: shape {shape!r}")
    if not _is_sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_bytes:
        raise WeightsError(f"{where}: offsets {offsets!r} lie outside {data_bytes} bytes of data")
    size_bytes = math.prod(shape) * _ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != size_bytes:
        raise WeightsError(f"{where}: {offsets[1] - offsets[0]} bytes for a {dtype} of shape {shape}")
    return TensorEntry(path, dtype, tuple(shape), data_start + offsets[0], size_bytes)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 63 for size in value)


def _read_index(path: Path) -> dict[str, str]:
    try:
        if path.stat().st_size > _MAX_HEADER_BYTES:
            raise WeightsError(f"{path.name} is too large")
        text = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"{path.name} cannot be read: {error.strerror}") from None
    weight_map = _parse_object(text, path.name).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{path.name}: weight_map is missing")
    for name, shard in weight_map.items():
        is_plain = isinstance(shard, str) and shard.endswith(".safetensors") and Path(shard).name == shard
        if not is_plain:
            raise WeightsError(f"{path.name}: {name[:200]}: {str(shard)[:200]!r} is not a shard's file name")
    return weight_map


def _parse_object(text: bytes, where: str) -> dict[str, Any]:
    """One JSON object without repeated names. Raises WeightsError."""

    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise WeightsError(f"{where}: a name is repeated")
        return found

    try:
        value = json.loads(text, object_pairs_hook=without_repeats)
    except (ValueError, RecursionError):
        raise WeightsError(f"{where}: the header is not JSON") from None
    if not isinstance(value, dict):
        raise WeightsError(f"{where}: the header is not a JSON object")
    return value
