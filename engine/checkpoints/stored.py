"""Stored tensors, the files that hold them, and the `Source` protocol by which parameters are read.

A `StoredTensor` is a range of a file. A `Source` is one parameter under the name that a model family uses, in whatever
format it is stored; it writes pieces of itself into a destination. Files are read with positioned reads into existing
memory and never mapped: access to a mapped file that has shrunk would kill the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.native.library import find_library

PIECE_ELEMENTS = 1 << 20  # per piece that is converted; memory of each thread besides the destination
PIECE_BYTES = 4 << 20  # per piece that is read directly into its destination
# Read, then checked. With smaller blocks threads contend for the interpreter lock; larger ones leave the CPU cache.
_BLOCK_BYTES = 1 << 20
_MAX_NAMED = 5
_NOT_FINITE = -(1 << 63)  # return value of the compiled reader

_NUMPY_TYPES = {"I8": "<i1", "U8": "<u1", "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4"}


class WeightsError(Exception):
    """The checkpoint is damaged, incomplete or contradicts its config. The message names the file and tensor."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in a file: `size_bytes` bytes at `offset`. `dtype` is the type's name in the file format."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int

    @property
    def num_rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return self.size_bytes // self.num_rows if self.num_rows else 0

    def rows(self, first: int, last: int) -> StoredTensor:
        """Return the range [first, last) of the first dimension."""
        num_rows, offset = last - first, self.offset + first * self.row_bytes
        shape, size_bytes = (num_rows, *self.shape[1:]), num_rows * self.row_bytes
        return replace(self, shape=shape, offset=offset, size_bytes=size_bytes)


class Files:
    """The open files of one load. Thread-safe."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._descriptors: dict[Path, int] = {}
        self._lock = threading.Lock()
        self._thread_local = threading.local()

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def read_into(self, tensor: StoredTensor, first_byte: int, buffer: memoryview) -> None:
        """Fill `buffer` with the tensor's bytes from `first_byte` on. Raises WeightsError."""
        assert first_byte >= 0
        assert first_byte + len(buffer) <= tensor.size_bytes, "a read stays inside its tensor"
        descriptor, offset = self._descriptor(tensor.path), tensor.offset + first_byte
        while len(buffer):
            try:
                count = os.preadv(descriptor, [buffer], offset)
            except OSError as error:
                raise WeightsError(f"{tensor.path.name}: {tensor.name} cannot be read: {error.strerror}") from None
            if count == 0:
                raise WeightsError(f"{tensor.path.name} ends inside {tensor.name}")
            buffer, offset = buffer[count:], offset + count

    def read_finite(self, tensor: StoredTensor, first_byte: int, values: torch.Tensor) -> None:
        """Fill the contiguous `values`, which have the tensor's type, from `first_byte` on.

        Raises WeightsError, also if a value is not finite.
        """
        assert first_byte >= 0
        assert first_byte + values.nbytes <= tensor.size_bytes, "a read stays inside its tensor"
        library = find_library()
        if library is None:
            self._read_and_check(tensor, first_byte, values)
            return
        count = library.hearth_read_finite(
            self._descriptor(tensor.path),
            values.data_ptr(),
            values.nbytes,
            tensor.offset + first_byte,
            values.itemsize,
            FIRST_NON_FINITE[values.dtype],
        )
        if count == values.nbytes:
            return
        if count == _NOT_FINITE:
            raise not_finite(tensor)
        if count < 0:
            raise WeightsError(f"{tensor.path.name}: {tensor.name} cannot be read: {os.strerror(-count)}")
        raise WeightsError(f"{tensor.path.name} ends inside {tensor.name}")

    def _read_and_check(self, tensor: StoredTensor, first_byte: int, values: torch.Tensor) -> None:
        values = values.reshape(-1)
        buffer = memoryview(values.view(torch.uint8).numpy().data)
        step = _BLOCK_BYTES // values.itemsize
        for first, last in ranges(len(values), step):
            start, end = first * values.itemsize, last * values.itemsize
            self.read_into(tensor, first_byte + start, buffer[start:end])
            require_finite(values[first:last], tensor)

    def piece_buffer(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Return a buffer for one piece, valid until this thread's next call.

        The buffer is reused because the allocator would take new memory for nearly every piece of this size.
        """
        num_bytes = shape.numel() * dtype.itemsize
        buffer: torch.Tensor | None = getattr(self._thread_local, "buffer", None)
        if buffer is None or len(buffer) < num_bytes:
            buffer = self._thread_local.buffer = torch.empty(max(num_bytes, PIECE_BYTES), dtype=torch.uint8)
        return buffer[:num_bytes].view(dtype).view(shape)

    def read_bytes(self, tensor: StoredTensor, first_byte: int, num_bytes: int) -> NDArray[np.uint8]:
        data = np.empty(num_bytes, np.uint8)
        self.read_into(tensor, first_byte, data.data)
        return data

    def read_rows(self, tensor: StoredTensor, first: int = 0, last: int | None = None) -> NDArray[np.generic]:
        """Return rows of the first dimension as an array, for types that NumPy supports."""
        last = tensor.num_rows if last is None else last
        data = self.read_bytes(tensor, first * tensor.row_bytes, (last - first) * tensor.row_bytes)
        shape = (last - first, *tensor.shape[1:]) if tensor.shape else ()
        return data.view(_NUMPY_TYPES[tensor.dtype]).reshape(shape)

    def read_reals(self, tensor: StoredTensor, first: int = 0, last: int | None = None) -> torch.Tensor:
        """Return rows of a tensor of scales as float32. Raises WeightsError, also if a scale is not finite."""
        last = tensor.num_rows if last is None else last
        data = self.read_bytes(tensor, first * tensor.row_bytes, (last - first) * tensor.row_bytes)
        shape = (last - first, *tensor.shape[1:]) if tensor.shape else ()
        values = torch.from_numpy(data).view(REALS[tensor.dtype]).reshape(shape).float()
        require_finite(values, tensor)
        return values

    def _descriptor(self, path: Path) -> int:
        with self._lock:
            descriptor = self._descriptors.get(path)
            if descriptor is None:
                try:
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise WeightsError(f"{path.name} cannot be read: {error.strerror}") from None
                self._stack.callback(os.close, descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # reads far ahead on a cold disk
                self._descriptors[path] = descriptor
            return descriptor


# Float types in which weights are stored without a scale, by their names in safetensors.
REALS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}


# The smallest non-finite number of each type, read as an integer without the sign bit.
FIRST_NON_FINITE = {
    torch.float64: 0x7FF << 52,
    torch.float32: 0xFF << 23,
    torch.float16: 0x1F << 10,
    torch.bfloat16: 0xFF << 7,
    torch.float8_e4m3fn: 0x7F,  # this type has no infinity
    torch.float8_e5m2: 0x1F << 2,
}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Source(Protocol):
    """One parameter that is read in pieces, by several threads at once."""

    @property
    def name(self) -> str: ...  # the name used by the model family
    @property
    def shape(self) -> tuple[int, ...]: ...  # shape of the parameter, not of the stored tensors
    @property
    def parts(self) -> tuple[StoredTensor, ...]: ...  # the stored tensors; the first has most of the bytes
    @property
    def kind(self) -> str: ...  # for messages: "BF16", "GPTQ int4"
    @property
    def is_quantized(self) -> bool: ...

    def check(self) -> None:
        """Raise WeightsError if the shapes and types of the parts do not fit each other. Reads no value."""

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges for `fill` in file order. Together they cover the parameter."""

    def fill(self, files: Files, destination: torch.Tensor, first: int, last: int) -> None:
        """Write one piece into `destination`, which has `shape` and may be strided. Raises WeightsError."""


def ranges(num_rows: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield [0, num_rows) in steps."""
    step = max(step, 1)
    for first in range(0, num_rows, step):
        yield first, min(first + step, num_rows)


def require_finite(values: torch.Tensor, tensor: StoredTensor) -> None:
    """Raise WeightsError if a value is NaN or infinite.

    As integers, non-finite numbers are the largest of their sign, so two maxima find them without allocating memory.
    """
    if not values.numel():
        return
    bits = values.view(_INTEGERS[values.itemsize]).numpy()
    bad = FIRST_NON_FINITE[values.dtype]
    negative = bits.view(f"u{bits.itemsize}")
    if bits.max() >= bad or negative.max() >= bad + (1 << 8 * bits.itemsize - 1):
        raise not_finite(tensor)


def not_finite(tensor: StoredTensor) -> WeightsError:
    """Return the error for a tensor with values that are not finite."""
    return WeightsError(f"{tensor.path.name}: {tensor.name} holds NaN or infinity")


def list_names(names: list[str], noun: str = "tensor") -> str:
    """Return a sentence's subject such as "tensor a is" or "tensors a, b and 7 more are"."""
    shown = ", ".join(name[:200] for name in names[:_MAX_NAMED])
    if len(names) == 1:
        return f"{noun} {shown} is"
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{noun}s {shown}{more} are"
