"""Products with packed weights on a device: 4-bit and 8-bit levels and blocks of 8-bit floats by Triton, 8-bit floats
with one scale per output by torch's scaled product.

Few tokens are multiplied with the levels directly, which reads the fewest bytes. For more tokens, the weights are first
expanded to the inputs' type. The number of tokens alone decides, so a step's kernels depend on its bucket only.

Letters: T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.kernels.interface import FLOAT8, Float8Rows, Operator

INPUTS = 64  # inputs per iteration; 4-bit levels are read twice as many at a time
MAX_DIRECT_TOKENS = 64
_FLOAT8_UNIT = 16  # the scaled product needs multiples of this size
_MIN_FLOAT8_CAPABILITY = (8, 9)  # also in engine.config, for checks before torch is imported


@dataclass(frozen=True, eq=False)
class DeviceMatrix:
    """A matrix [out, in] of levels in the kernels' layout: weight = (level - 2^(bits - 1)) × scale + offset.

    8 bits: levels uint8 [out, in]. 4 bits: uint8 [out, bytes], where 64 bytes have 128 inputs, the first 64 in the low
    halves; inputs are filled up to whole blocks. With `is_float`, levels are 8-bit floats (e4m3) and
    weight = float × scale.
    """

    bits: int
    shape: tuple[int, int]
    group_size: int
    levels: torch.Tensor
    scales: torch.Tensor  # [out, groups] in the narrowest type that holds the values exactly
    offsets: torch.Tensor | None  # [out, groups]
    is_float: bool = False


def supports_packed(form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> bool:
    """Return True if `bind_packed` supports such a matrix [out, in] with inputs of `dtype`."""
    num_out, num_in = shape
    if dtype != torch.bfloat16 or num_in % _FLOAT8_UNIT:
        return False
    if form.is_float and form.group_size == num_in:
        return num_out % _FLOAT8_UNIT == 0
    is_grouped = num_in % form.group_size == 0 and (INPUTS % form.group_size == 0 or form.group_size % INPUTS == 0)
    return form.bits in (4, 8) and (is_grouped or form.group_size == num_in)  # blocks of 8-bit floats are groups


def float8_fault() -> str:
    """Return why this device cannot compute with 8-bit floats although kernels exist, or "" if it can."""
    if not torch.cuda.is_available():
        return ""
    capability = torch.cuda.get_device_capability()
    if capability >= _MIN_FLOAT8_CAPABILITY:
        return ""
    return f"8-bit floats need compute capability 8.9 or later (this device has {capability[0]}.{capability[1]})"


def bind_packed(matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
    """Return x [T, in] -> x @ weight.T + bias in `dtype`, for a matrix on a device that `supports_packed` accepts."""
    if matrix.rounds_to_float8:
        return _float8(matrix, bias, dtype)
    return linear_of(device_matrix(matrix), bias)


def linear_of(matrix: DeviceMatrix, bias: torch.Tensor | None) -> Operator:
    """Return the operator of `bind_packed` for levels."""
    from engine.kernels.triton_packed import expand, multiply  # imported late, because Triton is optional

    def forward(x: torch.Tensor) -> torch.Tensor:
        if len(x) <= MAX_DIRECT_TOKENS:
            return multiply(x, matrix, bias)
        return functional.linear(x, expand(matrix, x.dtype), bias)

    return forward


def bind_table(matrix: QuantizedTensor) -> tuple[Operator, Operator]:
    """Return both operators of `Kernels.packed_table`."""
    from engine.kernels.triton_packed import expand

    table = device_matrix(matrix)
    return lambda token_ids: expand(table, torch.float32, token_ids), linear_of(table, None)


def device_matrix(matrix: QuantizedTensor) -> DeviceMatrix:
    """Return a matrix of levels in the kernels' layout."""
    num_out, num_in = matrix.shape
    levels = matrix.levels()
    if matrix.bits == 4:
        halves = functional.pad(levels, (0, -num_in % (2 * INPUTS))).unflatten(1, (-1, 2, INPUTS))
        levels = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)
    offsets = matrix.centered_offsets()
    return DeviceMatrix(
        matrix.bits,
        (num_out, num_in),
        matrix.group_size,
        levels.contiguous(),
        _narrowest(matrix.scales),
        None if offsets is None else _narrowest(offsets),
        matrix.is_float,
    )


def _narrowest(values: torch.Tensor) -> torch.Tensor:
    for dtype in (torch.bfloat16, torch.float16):
        narrow = values.to(dtype)
        if torch.equal(narrow.float(), values):
            return narrow.contiguous()
    return values.contiguous()


def _float8(matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
    from engine.kernels.triton_fused import round_rows

    weight, scales = matrix.packed.view(FLOAT8).t(), matrix.scales.reshape(1, -1).contiguous()  # [in, out], [1, out]
    narrow_bias = None if bias is None else bias.to(dtype)

    def forward(x: torch.Tensor | Float8Rows) -> torch.Tensor:
        rows = x if isinstance(x, Float8Rows) else round_rows(x)
        return torch._scaled_mm(
            rows.values, weight, scale_a=rows.scales, scale_b=scales, bias=narrow_bias, out_dtype=dtype
        )

    return forward
