"""Products with 4-bit and 8-bit weights that have a scale per group of inputs, in C++.

Inputs are rounded to 8 bits per block of at most 32 inputs, as llama.cpp does for the same formats. The rounding error
is far below that of 4-bit weights and about that of 8-bit weights.
"""

from __future__ import annotations

import ctypes
import math

import torch

from engine.arrays import ceil_div
from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.kernels.native.library import GroupedCall

_MAX_BLOCK = 32  # inputs that are rounded with one scale, at most
_UNITS = {4: 8, 8: 4}  # a block is a multiple of this many inputs
_MAX_SCALE_EXPONENT = 14  # exponent of the largest float16 scale


def supports_grouped(form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """Return True if `GroupedMatrix` supports such a matrix [out, in] with inputs of `dtype`.

    Only bfloat16 inputs are rounded further: float32 stands for exact results.
    """
    num_in = shape[1]
    if form.is_float or dtype != torch.bfloat16 or form.bits not in _UNITS or num_in % form.group_size:
        return False
    return form.group_size == num_in or form.group_size % _UNITS[form.bits] == 0


class GroupedMatrix:
    """A matrix [out, in] in the layout of the kernel."""

    def __init__(self, library: ctypes.CDLL, matrix: QuantizedTensor, bias: torch.Tensor | None) -> None:
        (num_out, num_in), bits = matrix.shape, matrix.bits
        block = _block_size(matrix.group_size, bits, num_in)
        num_inputs = ceil_div(num_in, block) * block
        width = library.hearth_grouped_width()  # outputs of a panel
        levels = torch.empty(ceil_div(num_out, width) * width * num_inputs * bits // 8, dtype=torch.uint8)
        rows, middle = matrix.packed.contiguous(), 1 << (bits - 1)
        library.hearth_grouped_pack(rows.data_ptr(), levels.data_ptr(), bits, middle, num_out, num_in, num_inputs)
        unit, scales, offsets = _in_float16(matrix.scales, matrix.centered_offsets(), width)
        exact_bias = None if bias is None else bias.float().contiguous()
        self._owners = levels, scales, offsets, exact_bias  # own the memory at the addresses below
        self._shape = matrix.shape
        self._call = GroupedCall(
            levels=levels.data_ptr(), scales=scales.data_ptr(), offsets=None if offsets is None else offsets.data_ptr(),
            bias=None if exact_bias is None else exact_bias.data_ptr(), num_out=num_out, num_in=num_in, bits=bits,
            block=block, num_groups=matrix.scales.shape[1], blocks_per_group=ceil_div(matrix.group_size, block),
            unit=unit,
        )  # fmt: skip
        self._reference = ctypes.byref(self._call)
        self._multiply, self._look_up = library.hearth_grouped_linear, library.hearth_grouped_rows

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, in] -> x @ weight.T + bias in bfloat16."""
        x = x.contiguous()
        num_rows, call = x.shape[0], self._call
        out = torch.empty(num_rows, self._shape[0], dtype=torch.bfloat16)
        call.x, call.out, call.num_tokens = x.data_ptr(), out.data_ptr(), num_rows
        self._multiply(self._reference)
        return out

    def look_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> the rows of the weight, float32 [T, in]."""
        token_ids = token_ids.contiguous()
        out = torch.empty(len(token_ids), self._shape[1])
        self._look_up(self._reference, token_ids.data_ptr(), out.data_ptr(), len(token_ids))
        return out


def _block_size(group_size: int, bits: int, num_in: int) -> int:
    """Return the largest possible block: one that divides the group, or any if one group has all inputs."""
    if group_size == num_in:
        return _MAX_BLOCK
    unit = _UNITS[bits]
    return max(size for size in range(unit, _MAX_BLOCK + 1, unit) if group_size % size == 0)


def _in_float16(
    scales: torch.Tensor, offsets: torch.Tensor | None, width: int
) -> tuple[float, torch.Tensor, torch.Tensor | None]:
    """Return float32 [out, groups] as float16 [panels, groups, width] and the unit that multiplies them.

    The unit makes the largest number large in float16, so that few numbers are subnormal.
    """
    peak = max(float(values.abs().max()) for values in (scales, offsets) if values is not None)
    unit = 2.0 ** (math.frexp(peak)[1] - 1 - _MAX_SCALE_EXPONENT) if peak else 1.0
    return unit, _in_panels(scales / unit, width), None if offsets is None else _in_panels(offsets / unit, width)


def _in_panels(values: torch.Tensor, width: int) -> torch.Tensor:
    num_out, num_groups = values.shape
    padded = torch.zeros(num_out + -num_out % width, num_groups, dtype=torch.float16)
    padded[:num_out] = values
    return padded.view(-1, width, num_groups).transpose(1, 2).contiguous()
