"""Products with 8-bit weights that have one scale per output, in C++: the same results as `engine.kernels.cpu_packed`.

Each input row is rounded to 8 bits inside the call.
"""

from __future__ import annotations

import ctypes

import torch

from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.kernels.interface import Operator

_WIDTH = 48  # outputs per panel, as in packed.cpp
_MAX_IN = 1 << 16  # more inputs could overflow the 32-bit sums


def supports_by_output(form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """Return True if `bind_by_output` supports such a matrix [out, in] with inputs of `dtype`."""
    is_by_output = form.is_symmetric and form.group_size == shape[1] <= _MAX_IN
    return dtype == torch.bfloat16 and form.bits == 8 and form.is_input_quantized and is_by_output


def bind_by_output(library: ctypes.CDLL, matrix: QuantizedTensor, bias: torch.Tensor | None) -> Operator:
    """Return x [T, in] -> x @ weight.T + bias in bfloat16."""
    bias = None if bias is None else bias.to(torch.bfloat16).contiguous()
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
