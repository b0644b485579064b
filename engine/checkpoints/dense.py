"""Weights stored as floats: any float type, and 8-bit floats with scales.

Values of the destination's type are read directly into it. 8-bit floats are multiplied by their scale: one per tensor,
one per output, or one per block of outputs × inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.arrays import ceil_div
from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.checkpoints.stored import (
    PIECE_BYTES,
    PIECE_ELEMENTS,
    REALS,
    Files,
    StoredTensor,
    WeightsError,
    ranges,
    require_finite,
)

_PAGE_BYTES = 4096
_EIGHT_BIT = ("F8_E4M3", "F8_E5M2")


@dataclass(frozen=True)
class _AsStored:
    """Base of sources whose values are read from one tensor unchanged."""

    name: str
    stored: StoredTensor

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return (self.stored,)

    @property
    def kind(self) -> str:
        return self.stored.dtype

    @property
    def is_quantized(self) -> bool:
        return False

    def pieces(self) -> Iterator[tuple[int, int]]:
        return ranges(self.stored.num_rows, PIECE_BYTES // max(self.stored.row_bytes, 1))


@dataclass(frozen=True)
class Dense(_AsStored):
    """A parameter stored in any float type."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    def check(self) -> None:
        if self.stored.dtype not in REALS or self.stored.dtype == "F8_E8M0":
            loadable = ", ".join(name for name in REALS if name != "F8_E8M0")
            raise WeightsError(f"{self.name} has type {self.stored.dtype}; {loadable} can be loaded")

    def fill(self, files: Files, destination: torch.Tensor, first: int, last: int) -> None:
        stored = self.stored
        rows = destination[first:last] if stored.shape else destination
        dtype = REALS[stored.dtype]
        is_direct = rows.dtype == dtype and rows.is_contiguous()
        target = rows if is_direct else files.piece_buffer(rows.shape, dtype)
        files.read_finite(stored, first * stored.row_bytes, target)
        if not is_direct:
            rows.copy_(target)

    def narrowed(self, dim: int, first: int, last: int) -> Dense | DenseColumns | None:
        if dim == 0:
            return Dense(self.name, self.stored.rows(first, last))
        return DenseColumns(self.name, self.stored, first, last) if len(self.shape) == 2 else None


@dataclass(frozen=True)
class DenseColumns(_AsStored):
    """The inputs [first, last) of a matrix stored in any float type.

    Reads only these inputs if they fill a page per row; otherwise reads whole rows, which share pages.
    """

    first: int
    last: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.num_rows, self.last - self.first

    def check(self) -> None:
        Dense(self.name, self.stored).check()

    def fill(self, files: Files, destination: torch.Tensor, first: int, last: int) -> None:
        stored, dtype = self.stored, REALS[self.stored.dtype]
        num_columns = self.last - self.first
        if num_columns * dtype.itemsize < _PAGE_BYTES:
            whole = files.read_bytes(stored, first * stored.row_bytes, (last - first) * stored.row_bytes)
            rows = torch.from_numpy(whole).view(dtype).view(last - first, -1)[:, self.first : self.last]
        else:
            rows = torch.empty(last - first, num_columns, dtype=dtype)
            for row, values in enumerate(rows.view(torch.uint8).numpy(), first):
                files.read_into(stored, row * stored.row_bytes + self.first * dtype.itemsize, values.data)
        require_finite(rows, stored)
        destination[first:last].copy_(rows)


@dataclass(frozen=True)
class ScaledFloat8:
    """`stored` [out, in] in 8-bit floats times `scale`: one number, [out] or [out, 1], or one per block."""

    name: str
    stored: StoredTensor
    scale: StoredTensor
    block: tuple[int, int] | None  # (outputs, inputs) from the config, if set there

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return self.stored, self.scale

    @property
    def kind(self) -> str:
        return self.stored.dtype

    @property
    def is_quantized(self) -> bool:
        return True

    def check(self) -> None:
        if self.stored.dtype not in _EIGHT_BIT or len(self.shape) != 2:
            raise WeightsError(f"{self.name} has a scale, type {self.stored.dtype} and shape {list(self.shape)}")
        if self.scale.dtype not in REALS:
            raise WeightsError(f"{self.scale.name} has type {self.scale.dtype}")
        self._block()

    def pieces(self) -> Iterator[tuple[int, int]]:
        rows = PIECE_ELEMENTS // max(self.shape[1], 1)
        height = self._block()[0]
        step = rows // height * height if rows > height else rows  # whole blocks, if a piece holds at least one
        return ranges(self.shape[0], step)

    def fill(self, files: Files, destination: torch.Tensor, first: int, last: int) -> None:
        num_out, num_in = self.shape
        height, width = self._block()
        data = files.read_bytes(self.stored, first * self.stored.row_bytes, (last - first) * self.stored.row_bytes)
        values = torch.from_numpy(data).view(REALS[self.stored.dtype]).reshape(last - first, num_in).float()
        if height >= num_out and width >= num_in:
            scales = files.read_reals(self.scale).reshape(1, 1)
            values *= scales
        else:
            first_block, last_block = first // height, (last - 1) // height + 1
            scales = files.read_reals(self.scale, first_block, last_block).reshape(last_block - first_block, -1)
            rows = torch.arange(first, last) // height - first_block
            columns = torch.arange(num_in) // width
            values *= scales[rows][:, columns] if width < num_in else scales[rows]  # [rows, in]
        require_finite(values, self.stored)
        destination[first:last].copy_(values)

    def read_quantized(self, files: Files) -> QuantizedTensor:
        """Return the whole matrix in the engine's packed form."""
        (num_out, num_in), (height, width) = self.shape, self._block()
        data = torch.from_numpy(files.read_bytes(self.stored, 0, self.stored.size_bytes)).view(num_out, num_in)
        scales = files.read_reals(self.scale).reshape(-1, ceil_div(num_in, width))
        scales = scales.repeat_interleave(height, 0)[:num_out].contiguous()  # [out, groups of inputs]
        require_finite(data.view(REALS[self.stored.dtype]).float(), self.stored)
        require_finite(scales, self.scale)
        return QuantizedTensor(8, data, scales, None, width, is_float=True)

    def packed_form(self, _files: Files) -> PackedForm | None:
        """Return None if blocks do not divide the inputs, or if the floats have few mantissa bits."""
        num_in, (_, width) = self.shape[1], self._block()
        if self.stored.dtype != "F8_E4M3" or num_in % width:
            return None
        return PackedForm(8, width, is_symmetric=True, is_float=True)

    def _block(self) -> tuple[int, int]:
        """Return how many outputs and inputs share a scale. Raises WeightsError if the shapes do not fit."""
        num_out, num_in = self.shape
        scales = self.scale.shape
        if math.prod(scales) == 1:
            return max(num_out, 1), max(num_in, 1)
        if scales in ((num_out,), (num_out, 1)):
            return 1, max(num_in, 1)
        height, width = self.block or (128, 128)
        if scales == (ceil_div(num_out, height), ceil_div(num_in, width)):
            return height, width
        raise WeightsError(
            f"{self.scale.name} has shape {list(scales)}, which fits no scaling of a matrix of shape {list(self.shape)}"
        )
