"""Products with packed weights in C++: the same results as `engine.kernels.cpu_packed`, in one call.

8 bits: input rows are rounded inside the call. 4 bits: levels are expanded to exact numbers in registers and groups are
scaled in float32; weights are expanded once for up to eight rows.
"""

from __future__ import annotations

import ctypes

import torch

from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.kernels.interface import Operator

_WIDTH = 48  # outputs per panel, as in packed.cpp
_CHUNK = 8  # the size of a 4-bit group is a multiple of this many inputs
_MAX_IN = 1 << 16  # more inputs could overflow the 32-bit sums of 8-bit products
_MIDDLE = 8  # the 4-bit level that stands for zero


def supports_packed(form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """Return True if `bind_packed` supports such a matrix [out, in] with inputs of `dtype`."""
    num_in = shape[1]
    if dtype != torch.bfloat16:
        return False
    if form.bits == 8:
        is_by_output = form.is_symmetric and form.group_size == num_in <= _MAX_IN
        return form.is_input_quantized and is_by_output
    return form.bits == 4 and num_in % form.group_size == 0 and form.group_size % _CHUNK == 0


def bind_packed(library: ctypes.CDLL, matrix: QuantizedTensor, bias: torch.Tensor | None) -> Operator:
    """Return x [T, in] -> x @ weight.T + bias in bfloat16."""
    bias = None if bias is None else bias.to(torch.bfloat16).contiguous()
    return _int8(library, matrix, bias) if matrix.bits == 8 else _int4(library, matrix, bias)


def _int8(library: ctypes.CDLL, matrix: QuantizedTensor, bias: torch.Tensor | None) -> Operator:
    num_out, num_in = matrix.shape
    num_padded = library.hearth_panels(num_out) * _WIDTH
    signed = (matrix.packed ^ 128).contiguous()  # int8 [out, in]
    panels = torch.empty(num_padded * (num_in + -num_in % 4), dtype=torch.int8)
    sums = torch.empty(num_padded, dtype=torch.int32)
    library.hearth_pack8(signed.data_ptr(), panels.data_ptr(), sums.data_ptr(), num_out, num_in)
    scales = torch.zeros(num_padded)
    scales[:num_out] = matrix.scales.flatten() / 127
    multiply, addresses = library.hearth_linear8, (panels.data_ptr(), sums.data_ptr(), scales.data_ptr())
    bias_at = None if bias is None else bias.data_ptr()

    def forward(x: torch.Tensor, _owners: object = (panels, sums, scales, bias)) -> torch.Tensor:
        x = x.contiguous()
        num_rows = x.shape[0]
        out = torch.empty(num_rows, num_out, dtype=torch.bfloat16)
        multiply(x.data_ptr(), *addresses, bias_at, out.data_ptr(), num_rows, num_out, num_in)
        return out

    return forward


def _int4(library: ctypes.CDLL, matrix: QuantizedTensor, bias: torch.Tensor | None) -> Operator:
    num_out, num_in = matrix.shape
    group_size, levels = matrix.group_size, matrix.packed.contiguous()
    panels = torch.empty(library.hearth_panels(num_out) * _WIDTH * num_in // 4, dtype=torch.int16)
    library.hearth_pack4(levels.data_ptr(), panels.data_ptr(), num_out, num_in)
    scales = _in_panels(matrix.scales)
    offsets = None if matrix.zeros is None else _in_panels((_MIDDLE - matrix.zeros.float()) * matrix.scales)
    multiply = library.hearth_linear4
    addresses = panels.data_ptr(), scales.data_ptr(), None if offsets is None else offsets.data_ptr()
    bias_at = None if bias is None else bias.data_ptr()

    def forward(x: torch.Tensor, _owners: object = (panels, scales, offsets, bias)) -> torch.Tensor:
        x = x.contiguous()
        num_rows = x.shape[0]
        out = torch.empty(num_rows, num_out, dtype=torch.bfloat16)
        multiply(x.data_ptr(), *addresses, bias_at, out.data_ptr(), num_rows, num_out, num_in, group_size)
        return out

    return forward


def _in_panels(values: torch.Tensor) -> torch.Tensor:
    """Return float32 [out, groups] as [panels, groups, WIDTH], padded with zeros."""
    num_out, num_groups = values.shape
    padded = torch.zeros(num_out + -num_out % _WIDTH, num_groups)
    padded[:num_out] = values
    return padded.view(-1, _WIDTH, num_groups).transpose(1, 2).contiguous()
