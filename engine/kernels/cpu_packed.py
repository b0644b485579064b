"""Matrix products on the CPU with weights that stay packed: 8-bit levels by output, 4-bit levels by group.

8 bits: every row of inputs is rounded to 255 levels of its own largest number, oneDNN multiplies whole numbers, and
the result is scaled by output and by row. Sums are exact, so a row's result does not depend on its batch mates. Inputs
are given as unsigned numbers around 128: signed ones fall to a slow reference. 4 bits: torch's weight-only operator,
which reads a quarter of the bytes and is made for few rows. Both operators are offered under private names only, so
each is tried once on a small product and left alone, with a warning, where it is missing or wrong.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch
from torch.nn import functional

from engine.checkpoints.quantized import PackedForm, QuantizedTensor, quantized
from engine.kernels.cpu_linear import _ROW_STEP
from engine.kernels.interface import Operator
from engine.kernels.reference import round_rows

logger = logging.getLogger(__name__)

_ZERO = 128  # of inputs as unsigned numbers
_MAX_LEVEL = 127.0
_GROUP_SIZES = (256, 128, 64, 32)  # that the 4-bit operator knows
_OUT_STEP = 16  # it takes outputs in such multiples
# Added to a number below 2^22, leaves its nearest whole number + 128 in the low byte: one addition rounds and shifts.
_ROUNDER = 1.5 * 2**23 + _ZERO


def takes_packed(form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """Whether `bind_packed` has an operator here for such a matrix [out, in] and inputs of `dtype`."""
    num_out, num_in = shape
    if form.bits == 8:
        is_by_output = form.is_symmetric and form.group_size == num_in
        return form.is_input_quantized and is_by_output and has_int8_linear(dtype)
    is_grouped = num_in % form.group_size == 0 and form.group_size % _GROUP_SIZES[-1] == 0
    is_fit = is_grouped and num_out % _OUT_STEP == 0 and dtype == torch.bfloat16
    return form.bits == 4 and is_fit and has_int4_linear()


def bind_packed(matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
    """x [T, in] -> x @ weight.T + bias in `dtype`, of a matrix that `takes_packed` takes."""
    if matrix.bits == 8:
        return _int8(matrix, bias, dtype)
    return _int4(matrix, bias)


def _int8(matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
    num_out = matrix.shape[0]
    signed = (matrix.packed ^ _ZERO).view(torch.int8)  # [out, in]
    packed = torch.ops.onednn.qlinear_prepack(signed, None)
    scales, zeros = matrix.scales.flatten() / _MAX_LEVEL, torch.zeros(num_out, dtype=torch.int64)  # [out]
    overload = torch.ops.onednn.qlinear_pointwise.default
    linear = getattr(overload, "_op", overload)  # without a call of Python around each call
    most, rounder = torch.tensor(_MAX_LEVEL), torch.tensor(_ROUNDER)

    def forward(x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[0]
        is_padded = num_rows > _ROW_STEP and num_rows % _ROW_STEP != 0
        if is_padded:  # a kernel is compiled for every number of rows
            x = functional.pad(x, (0, 0, 0, -num_rows % _ROW_STEP))
        real = x.float()  # [T, in]
        peak = real.abs().amax(-1, True)  # [T, 1]; a row of zeros becomes 0 × something finite
        shifted = torch.mul(real, torch.div(most, peak)).add_(rounder)
        levels = shifted.view(torch.int32).to(torch.uint8)  # [T, in]
        y = linear(levels, 1.0, _ZERO, packed, scales, zeros, None, 1.0, 0, dtype, "none", [], "")  # [T, out]
        y.mul_(peak)
        if bias is not None:
            y.add_(bias)
        return y[:num_rows] if is_padded else y

    return forward


def _int4(matrix: QuantizedTensor, bias: torch.Tensor | None) -> Operator:
    group_size = next(size for size in _GROUP_SIZES if matrix.group_size % size == 0)
    repeats = matrix.group_size // group_size
    scales = matrix.scales.repeat_interleave(repeats, 1)  # float32 [out, groups]
    zeros = torch.zeros_like(scales)  # of the middle
    if matrix.zeros is not None:
        zeros = (8 - matrix.zeros.float()).repeat_interleave(repeats, 1) * scales
    scales_and_zeros = torch.stack((scales.t(), zeros.t()), 2).to(torch.bfloat16).contiguous()  # [groups, out, 2]
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(matrix.levels().to(torch.int32), 1)
    overload = torch.ops.aten._weight_int4pack_mm_for_cpu.default
    linear = getattr(overload, "_op", overload)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return linear(x, packed, group_size, scales_and_zeros)

    if bias is None:
        return forward
    return lambda x: forward(x).add_(bias)


@functools.cache
def has_int8_linear(dtype: torch.dtype) -> bool:
    """Whether the 8-bit product exists here and is exact, also where sums of pairs are largest."""

    def probe() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.full((3, 64), 2.0)
        x[1], x[2, ::2] = torch.linspace(-2, 2, 64), -2.0
        levels = torch.full((32, 64), 255, dtype=torch.uint8)
        levels[1::2] = torch.arange(1, 256, 4, dtype=torch.uint8)
        matrix = QuantizedTensor(8, levels, torch.full((32, 1), 0.25), None, 64)
        weight = matrix.dequantize(torch.float32)
        return _int8(matrix, None, dtype)(x.to(dtype)), functional.linear(round_rows(x.to(dtype)), weight)

    return _is_right(probe, "8-bit")


@functools.cache
def has_int4_linear() -> bool:
    """Whether the 4-bit product exists here and gives the right answer."""

    def probe() -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        levels = torch.randint(0, 16, (32, 64), generator=generator, dtype=torch.uint8)
        zeros = torch.randint(0, 16, (32, 2), generator=generator, dtype=torch.uint8)
        scales = torch.rand(32, 2, generator=generator)
        matrix = quantized(levels, 4, scales, zeros, 32, None)
        x = torch.randn(3, 64, generator=generator).to(torch.bfloat16)
        return _int4(matrix, None)(x), functional.linear(x.float(), matrix.dequantize(torch.float32))

    return _is_right(probe, "4-bit")


def _is_right(probe: Callable[[], tuple[torch.Tensor, torch.Tensor]], kind: str) -> bool:
    try:
        with torch.inference_mode():
            result, expected = probe()
        is_right = result.shape == expected.shape and torch.allclose(result.float(), expected, atol=0.5, rtol=0.02)
    except (AttributeError, RuntimeError, TypeError):
        is_right = False
    if not is_right:
        logger.warning("no %s product on this machine: such weights are expanded when they are loaded", kind)
    return is_right
