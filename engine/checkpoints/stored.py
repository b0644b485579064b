"""Where the bytes of a checkpoint lie, how they are read, and what a parameter is to its reader.

A `StoredTensor` is a range of a file. A `Source` is one parameter under the name that a model family asks for, whatever
it is stored as; it knows how to put a piece of itself into its destination. Reads are positioned reads into memory that
is there already; no file is ever mapped, since a file that shrinks would then end the process.
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

PIECE_ELEMENTS = 1 << 20  # of what is converted on the way: what one thread holds besides the destination
PIECE_BYTES = 4 << 20  # of what is read straight into its place
_BLOCK_BYTES = 1 << 20  # read, then checked: less and threads wait for each other, more and it has left the cache
_MAX_NAMED = 5
_NOT_FINITE = -(1 << 63)  # what the compiled reader says

_NUMPY_TYPES = {"I8": "<i1", "U8": "<u1", "I32": "<i4", "I64": "<i8", "F16": "<f2", "F32": "<f4"}


class WeightsError(Exception):
    """The checkpoint is damaged, incomplete or not what its config says; the text names the file and tensor."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in a file: `size_bytes` bytes at `offset` from the file's start. `dtype` is the format's own word."""

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
        """The range [first, last) of the first dimension."""
        num_rows, offset = last - first, self.offset + first * self.row_bytes
        shape, size_bytes = (num_rows, *self.shape[1:]), num_rows * self.row_bytes
        return replace(self, shape=shape, offset=offset, size_bytes=size_bytes)


class Files:
    """Open files of one load. Safe to use from several threads."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._descriptors: dict[Path, int] = {}
        self._lock = threading.Lock()
        self._of_thread = threading.local()

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
        """Fill `values`, which are contiguous and of the tensor's type, from `first_byte` on; all of them finite.

        Raises WeightsError.
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
            raise _not_finite(tensor)
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

    def room(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Memory for one piece on its way, this thread's until it asks again.

        Kept, since the allocator does not find what it has freed again for such sizes: it would take new memory for
        nearly every piece.
        """
        num_bytes = shape.numel() * dtype.itemsize
        held: torch.Tensor | None = getattr(self._of_thread, "room", None)
        if held is None or len(held) < num_bytes:
            held = self._of_thread.room = torch.empty(max(num_bytes, PIECE_BYTES), dtype=torch.uint8)
        return held[:num_bytes].view(dtype).view(shape)

    def read_bytes(self, tensor: StoredTensor, first_byte: int, num_bytes: int) -> NDArray[np.uint8]:
        data = np.empty(num_bytes, np.uint8)
        self.read_into(tensor, first_byte, data.data)
        return data

    def read_rows(self, tensor: StoredTensor, first: int = 0, last: int | None = None) -> NDArray[np.generic]:
        """Rows of the first dimension as an array; for types that NumPy has."""
        last = tensor.num_rows if last is None else last
        data = self.read_bytes(tensor, first * tensor.row_bytes, (last - first) * tensor.row_bytes)
        shape = (last - first, *tensor.shape[1:]) if tensor.shape else ()
        return data.view(_NUMPY_TYPES[tensor.dtype]).reshape(shape)

    def read_reals(self, tensor: StoredTensor, first: int = 0, last: int | None = None) -> torch.Tensor:
        """Rows of a tensor of scales, as float32; finite, since one bad scale spoils a whole group. Raises
        WeightsError."""
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
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)  # from a cold disk, read far ahead
                self._descriptors[path] = descriptor
            return descriptor


# Types that hold weights as they are.
REALS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}


# As integers without their sign: the first that is no finite number.
FIRST_NON_FINITE = {
    torch.float64: 0x7FF << 52,
    torch.float32: 0xFF << 23,
    torch.float16: 0x1F << 10,
    torch.bfloat16: 0xFF << 7,
    torch.float8_e4m3fn: 0x7F,  # has no infinity
    torch.float8_e5m2: 0x1F << 2,
}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Source(Protocol):
    """One parameter, readable piece by piece, several pieces at once."""

    @property
    def name(self) -> str: ...  # that a family asks for
    @property
    def shape(self) -> tuple[int, ...]: ...  # of the parameter, not of what is stored
    @property
    def parts(self) -> tuple[StoredTensor, ...]: ...  # what it is made of; the first has the bulk
    @property
    def kind(self) -> str: ...  # for people: "BF16", "GPTQ int4"
    @property
    def is_quantized(self) -> bool: ...

    def check(self) -> None:
        """Do shapes and types of the parts fit each other? Reads no value. Raises WeightsError."""

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Ranges to give to `fill`, in the order in which they lie in the file; together they are all of it."""

    def fill(self, files: Files, destination: torch.Tensor, first: int, last: int) -> None:
        """Write one piece into `destination`, which has `shape` and may be strided. Raises WeightsError."""


def ranges(num_rows: int, step: int) -> Iterator[tuple[int, int]]:
    """[0, num_rows) in steps."""
    step = max(step, 1)
    for first in range(0, num_rows, step):
        yield first, min(first + step, num_rows)


def require_finite(values: torch.Tensor, tensor: StoredTensor) -> None:
    """A weight that is NaN or infinite makes every answer worthless.

    Read as integers, numbers that are not finite are the largest of their sign: two maxima tell. They make nothing new
    in memory, and cost a part of a read while the values are still in the processor's cache. Raises WeightsError.
    """
    if not values.numel():
        return
    bits = values.view(_INTEGERS[values.itemsize]).numpy()
    bad = FIRST_NON_FINITE[values.dtype]
    negative = bits.view(f"u{bits.itemsize}")
    if bits.max() >= bad or negative.max() >= bad + (1 << 8 * bits.itemsize - 1):
        raise _not_finite(tensor)


def _not_finite(tensor: StoredTensor) -> WeightsError:
    return WeightsError(f"{tensor.path.name}: {tensor.name} holds NaN or infinity")


def list_names(names: list[str], noun: str = "tensor") -> str:
    """ "tensor a is", "tensors a, b and 7 more are"."""
    shown = ", ".join(name[:200] for name in names[:_MAX_NAMED])
    if len(names) == 1:
        return f"{noun} {shown} is"
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{noun}s {shown}{more} are"
