"""Write a safetensors file in parts, so that the weights of a whole model need not be in memory.

The header is written first, from names, types and shapes. Then the rows of each tensor are written in any order, by any
thread. The bytes are those that `safetensors.torch.save_file` writes for the same tensors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import torch

# Names of the types in the format. Tensors are stored in this order of types, the widest first, then by name.
_TYPE_NAMES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
}
_ALIGNMENT = 8  # bytes; the header is padded with spaces

Specs = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Type and shape of each tensor, by name."""


class TensorFile:
    """A new file of tensors with these types and shapes. A context manager that closes the file."""

    def __init__(self, path: Path, specs: Specs) -> None:
        ranks = list(_TYPE_NAMES)
        self._offsets: dict[str, int] = {}
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in sorted(specs, key=lambda name: (ranks.index(specs[name][0]), name)):
            dtype, shape = specs[name]
            begin, end = end, end + tensor_bytes(dtype, shape)
            self._offsets[name] = begin
            header[name] = {"dtype": _TYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        self._first_byte = 8 + len(text)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            self._write_at(0, memoryview(len(text).to_bytes(8, "little") + text))
            os.ftruncate(self._descriptor, self._first_byte + end)
        except OSError:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def write(self, name: str, rows: torch.Tensor, first: int = 0) -> None:
        """Write rows of a tensor from row `first` on. Raises OSError."""
        row_bytes = rows.nbytes // len(rows) if rows.ndim and len(rows) else 0
        data = rows.contiguous().reshape(-1).view(torch.uint8).numpy().data
        self._write_at(self._first_byte + self._offsets[name] + first * row_bytes, data)

    def _write_at(self, offset: int, data: memoryview) -> None:
        while len(data):
            count = os.pwrite(self._descriptor, data, offset)
            data, offset = data[count:], offset + count


def tensor_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    """Return the size of a tensor in the file."""
    return math.prod(shape) * dtype.itemsize
