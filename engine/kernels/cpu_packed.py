"""Matrix products on the CPU with packed weights: 8-bit levels per output, 4-bit levels per group of inputs.

8 bits: each input row is quantized to 255 levels of its largest absolute value, oneDNN multiplies integers, and the
product is scaled per output and per row. Integer sums are exact, so a row's result does not depend on the other rows
of the batch. Inputs are unsigned with zero point 128 because oneDNN has no fast path for signed ones. 4 bits: torch's
weight-only operator, which reads a quarter of the bytes and is fast for few rows.

Both operators are private in torch. Each is tried once per process on a small product; if it is missing, wrong or far
slower than the plain product, it is not used and a warning is logged.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch
from torch.nn import functional

from engine.checkpoints.quantized import PackedForm, QuantizedTensor, quantized
from engine.kernels.cpu_linear import ROW_STEP, bind_linear, seconds_per_call
from engine.kernels.interface import Operator
from engine.kernels.reference import round_rows

logger = logging.getLogger(__name__)

_ZERO_POINT = 128  # zero point of the unsigned inputs
_MAX_LEVEL = 127.0
_GROUP_SIZES = (256, 128, 64, 32)  # supported by the 4-bit operator
_OUT_STEP = 16  # the 4-bit operator needs a multiple of this many outputs
# Added to a number below 2^22, leaves its nearest integer + 128 in the low byte: one addition rounds and shifts.
_ROUNDER = 1.5 * 2**23 + _ZERO_POINT
_PROBE_SIZE = 512  # inputs and outputs of the product that is timed
_PROBE_BUDGET_S = 0.01
# Packed weights save memory, which is worth some time. Fast operators measure below 3 times the plain product; oneDNN's
# reference implementation, which it uses for bfloat16 without VNNI instructions, measures above 300 times.
_MAX_SLOWDOWN = 16


def supports_packed(form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """Return True if `bind_packed` supports such a matrix [out, in] with inputs of `dtype` on this machine."""
    num_out, num_in = shape
    if form.bits == 8:
        is_by_output = form.is_symmetric and form.group_size == num_in
        return form.is_input_quantized and is_by_output and has_int8_linear(dtype)
    is_grouped = num_in % form.group_size == 0 and form.group_size % _GROUP_SIZES[-1] == 0
    is_fit = is_grouped and num_out % _OUT_STEP == 0 and dtype == torch.bfloat16
    return form.bits == 4 and is_fit and has_int4_linear()


def bind_packed(matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
    """Return x [T, in] -> x @ weight.T + bias in `dtype`, for a matrix that `supports_packed` accepts."""
    if matrix.bits == 8:
        return _int8(matrix, bias, dtype)
    return _int4(matrix, bias)


def _int8(matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
    num_out = matrix.shape[0]
    signed = (matrix.packed ^ _ZERO_POINT).view(torch.int8)  # [out, in]
    packed = torch.ops.onednn.qlinear_prepack(signed, None)
    scales, zeros = matrix.scales.flatten() / _MAX_LEVEL, torch.zeros(num_out, dtype=torch.int64)  # [out]
    overload = torch.ops.onednn.qlinear_pointwise.default
    linear = getattr(overload, "_op", overload)  # skips a Python call around each call
    max_level, rounder = torch.tensor(_MAX_LEVEL), torch.tensor(_ROUNDER)

    def forward(x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[0]
        is_padded = num_rows > ROW_STEP and num_rows % ROW_STEP != 0
        if is_padded:  # oneDNN compiles a kernel for every distinct number of rows
            x = functional.pad(x, (0, 0, 0, -num_rows % ROW_STEP))
        real = x.float()  # [T, in]
        peak = real.abs().amax(-1, True)  # [T, 1]; a row of zeros becomes 0 × a finite number
        shifted = torch.mul(real, torch.div(max_level, peak)).add_(rounder)
        levels = shifted.view(torch.int32).to(torch.uint8)  # [T, in]
        y = linear(levels, 1.0, _ZERO_POINT, packed, scales, zeros, None, 1.0, 0, dtype, "none", [], "")  # [T, out]
        y.mul_(peak)
        if bias is not None:
            y.add_(bias)
        return y[:num_rows] if is_padded else y

    return forward


def _int4(matrix: QuantizedTensor, bias: torch.Tensor | None) -> Operator:
    group_size = next(size for size in _GROUP_SIZES if matrix.group_size % size == 0)
    repeats = matrix.group_size // group_size
    scales = matrix.scales.repeat_interleave(repeats, 1)  # float32 [out, groups]
    centered = matrix.centered_offsets()  # the operator counts levels from 8
    offsets = torch.zeros_like(scales) if centered is None else centered.repeat_interleave(repeats, 1)
    scales_and_offsets = torch.stack((scales.t(), offsets.t()), 2).to(torch.bfloat16).contiguous()  # [groups, out, 2]
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(matrix.levels().to(torch.int32), 1)
    overload = torch.ops.aten._weight_int4pack_mm_for_cpu.default
    linear = getattr(overload, "_op", overload)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return linear(x, packed, group_size, scales_and_offsets)

    if bias is None:
        return forward
    return lambda x: forward(x).add_(bias)


@functools.cache
def has_int8_linear(dtype: torch.dtype) -> bool:
    """Return True if the 8-bit product exists on this CPU, is exact even for the largest sums, and is fast."""

    def probe() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.full((3, 64), 2.0)
        x[1], x[2, ::2] = torch.linspace(-2, 2, 64), -2.0
        levels = torch.full((32, 64), 255, dtype=torch.uint8)
        levels[1::2] = torch.arange(1, 256, 4, dtype=torch.uint8)
        matrix = QuantizedTensor(8, levels, torch.full((32, 1), 0.25), None, 64)
        weight = matrix.dequantize(torch.float32)
        return _int8(matrix, None, dtype)(x.to(dtype)), functional.linear(round_rows(x.to(dtype)), weight)

    def bind_large() -> Operator:
        levels = torch.full((_PROBE_SIZE, _PROBE_SIZE), 129, dtype=torch.uint8)
        return _int8(QuantizedTensor(8, levels, torch.ones(_PROBE_SIZE, 1), None, _PROBE_SIZE), None, dtype)

    return _is_usable("8-bit", dtype, probe, bind_large)


@functools.cache
def has_int4_linear() -> bool:
    """Return True if the 4-bit product exists on this CPU, is correct, and is fast."""

    def probe() -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        levels = torch.randint(0, 16, (48, 64), generator=generator, dtype=torch.uint8)
        zeros = torch.randint(0, 16, (48, 2), generator=generator, dtype=torch.uint8)
        scales = torch.rand(48, 2, generator=generator)
        matrix = quantized(levels, 4, scales, zeros, 32, None)
        x = torch.randn(3, 64, generator=generator).to(torch.bfloat16)
        return _int4(matrix, None)(x), functional.linear(x.float(), matrix.dequantize(torch.float32))

    def bind_large() -> Operator:
        levels = torch.full((_PROBE_SIZE, _PROBE_SIZE), 9, dtype=torch.uint8)
        return _int4(quantized(levels, 4, torch.ones(_PROBE_SIZE, _PROBE_SIZE // 32), None, 32, None), None)

    return _is_usable("4-bit", torch.bfloat16, probe, bind_large)


def _is_usable(
    kind: str,
    dtype: torch.dtype,
    probe: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    bind_large: Callable[[], Operator],
) -> bool:
    """Return True if `probe`'s product equals its expectation and `bind_large`'s is not far slower than a plain one."""
    try:
        with torch.inference_mode():
            result, expected = probe()
        is_usable = result.shape == expected.shape and torch.allclose(result.float(), expected, atol=0.5, rtol=0.02)
        is_usable = is_usable and _slowdown(bind_large(), dtype) < _MAX_SLOWDOWN
    except (AttributeError, RuntimeError, TypeError):
        is_usable = False
    if not is_usable:
        logger.warning("no usable %s product for %s on this CPU: such weights are expanded at load", kind, dtype)
    return is_usable


def _slowdown(operator: Operator, dtype: torch.dtype) -> float:
    """Return how many times as long as the plain product of the same size `operator` takes for one row."""
    x = torch.ones(1, _PROBE_SIZE, dtype=dtype)
    plain = bind_linear(torch.ones(_PROBE_SIZE, _PROBE_SIZE, dtype=dtype), None)
    return seconds_per_call(operator, x, _PROBE_BUDGET_S) / seconds_per_call(plain, x, _PROBE_BUDGET_S)
