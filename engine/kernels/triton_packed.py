"""Products with 4-bit and 8-bit levels, or groups of 8-bit floats, in Triton, and their expansion to floats.

A program multiplies 64 outputs with all tokens: the weights are the first operand, which matrix units read from
registers, where they are expanded. Inputs are divided into parts if there are few outputs; a second launch adds the
parts in order. Sums are float32 in a fixed order: a token's result does not depend on other tokens. The definition is
`engine.checkpoints.quantized.QuantizedTensor.dequantize`. Compatible with Triton 3.6 and later; with TRITON_INTERPRET=1
the kernels run on a CPU.

Does not import `annotations` from `__future__`, because Triton evaluates those of its kernels.

Letters: T tokens, M tokens of a program, N outputs of a program.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.device_packed import INPUTS, MAX_DIRECT_TOKENS, DeviceMatrix

_OUTPUTS = 64  # outputs per program
_FEW_TOKENS = 16
_WANTED_PROGRAMS = 264  # two per multiprocessor of an H100 or H200
_MAX_SPLITS = 8
_MIN_SPLIT_INPUTS = 512
_JOIN_BLOCK = 1024


@triton.jit
def _per_input(
    values, row, first_input, num_groups, is_row, group: tl.constexpr, num_n: tl.constexpr, num_k: tl.constexpr
):
    """Return the numbers of the groups of inputs [first_input, first_input + K) of rows, float32 [N, K] or [N, 1]."""
    if group % num_k == 0:
        number = tl.minimum(first_input // group, num_groups - 1)  # parts may end beyond the last group
        at = values + row * num_groups + number
        numbers = tl.load(at, mask=is_row, other=0.0).to(tl.float32)[:, None]
    else:
        each: tl.constexpr = num_k // group
        number = first_input // group + tl.arange(0, each)
        at = values + row[:, None] * num_groups + number[None, :]
        found = tl.load(at, mask=is_row[:, None] & (number < num_groups)[None, :], other=0.0).to(tl.float32)
        numbers = tl.reshape(tl.broadcast_to(found[:, :, None], (num_n, each, group)), (num_n, num_k))
    return numbers


@triton.jit
def _weights(
    levels,
    scales,
    offsets,
    row,
    first_input,
    num_groups,
    is_row,
    middle: tl.constexpr,
    group: tl.constexpr,
    has_offsets: tl.constexpr,
    is_float: tl.constexpr,
    num_n: tl.constexpr,
    num_k: tl.constexpr,
):
    """Return the weights [N, K] of levels [N, K], or of 8-bit floats as bytes, float32."""
    scale = _per_input(scales, row, first_input, num_groups, is_row, group, num_n, num_k)
    if is_float:
        weights = levels.to(tl.float8e4nv, bitcast=True).to(tl.float32) * scale
    else:
        weights = (levels.to(tl.int32) - middle).to(tl.float32) * scale
    if has_offsets:
        weights += _per_input(offsets, row, first_input, num_groups, is_row, group, num_n, num_k)
    return weights


@triton.jit(do_not_specialize=["num_tokens"])
def _multiply(
    x,
    levels,
    scales,
    offsets,
    bias,
    out,
    x_stride,
    row_bytes,
    num_tokens,
    num_out,
    num_groups,
    num_in: tl.constexpr,
    split_size: tl.constexpr,
    bits: tl.constexpr,
    group: tl.constexpr,
    has_offsets: tl.constexpr,
    is_float: tl.constexpr,
    has_bias: tl.constexpr,
    num_m: tl.constexpr,
    num_n: tl.constexpr,
    num_k: tl.constexpr,
):
    split = tl.program_id(1)
    row = (tl.program_id(0) * num_n + tl.arange(0, num_n)).to(tl.int64)
    is_row = row < num_out
    m = tl.arange(0, num_m)
    is_token = m < num_tokens
    k = tl.arange(0, num_k)
    middle: tl.constexpr = 1 << (bits - 1)
    per_step: tl.constexpr = num_k * (8 // bits)  # inputs per iteration
    total = tl.zeros([num_n, num_m], tl.float32)
    for start in range(split * split_size, split * split_size + split_size, per_step):
        at = levels + row[:, None] * row_bytes + start * bits // 8 + k[None, :]
        is_level = is_row[:, None] & (start * bits // 8 + k < row_bytes)[None, :]
        packed = tl.load(at, mask=is_level, other=0)  # [N, K]
        for half in tl.static_range(8 // bits):
            first = start + half * num_k
            own = packed if bits == 8 else (packed >> (4 * half)) & 15
            w = _weights(
                own, scales, offsets, row, first, num_groups, is_row, middle, group, has_offsets, is_float, num_n, num_k
            )
            x_at = x + m[:, None] * x_stride + (first + k)[None, :]
            inputs = tl.load(x_at, mask=is_token[:, None] & (first + k < num_in)[None, :], other=0.0)  # [M, K]
            total = tl.dot(w.to(inputs.dtype), tl.trans(inputs), total, input_precision="ieee")
    if has_bias:
        total += tl.load(bias + row, mask=is_row, other=0.0).to(tl.float32)[:, None]
    out_at = out + (split * num_tokens + m).to(tl.int64)[None, :] * num_out + row[:, None]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_token[None, :])


@triton.jit(do_not_specialize=["size"])
def _join(parts, bias, out, size, num_out, num_splits: tl.constexpr, has_bias: tl.constexpr, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    total = tl.zeros([block], tl.float32)
    for split in tl.static_range(num_splits):
        total += tl.load(parts + split * size + i, mask=i < size, other=0.0)
    if has_bias:
        total += tl.load(bias + i % num_out, mask=i < size, other=0.0).to(tl.float32)
    tl.store(out + i, total.to(out.dtype.element_ty), mask=i < size)


@triton.jit(do_not_specialize=["num_rows"])
def _expand(
    levels,
    scales,
    offsets,
    rows,
    out,
    row_bytes,
    num_rows,
    num_groups,
    num_in: tl.constexpr,
    bits: tl.constexpr,
    group: tl.constexpr,
    has_offsets: tl.constexpr,
    is_float: tl.constexpr,
    has_rows: tl.constexpr,
    num_n: tl.constexpr,
    num_k: tl.constexpr,
):
    target = (tl.program_id(0) * num_n + tl.arange(0, num_n)).to(tl.int64)
    is_row = target < num_rows
    row = tl.load(rows + target, mask=is_row, other=0).to(tl.int64) if has_rows else target
    k = tl.arange(0, num_k)
    middle: tl.constexpr = 1 << (bits - 1)
    byte = tl.program_id(1) * num_k + k
    packed = tl.load(
        levels + row[:, None] * row_bytes + byte[None, :], mask=is_row[:, None] & (byte < row_bytes)[None, :], other=0
    )
    for half in tl.static_range(8 // bits):
        first = (tl.program_id(1) * (8 // bits) + half) * num_k
        own = packed if bits == 8 else (packed >> (4 * half)) & 15
        w = _weights(
            own, scales, offsets, row, first, num_groups, is_row, middle, group, has_offsets, is_float, num_n, num_k
        )
        out_at = out + target[:, None] * num_in + (first + k)[None, :]
        tl.store(out_at, w.to(out.dtype.element_ty), mask=is_row[:, None] & (first + k < num_in)[None, :])


def multiply(x: torch.Tensor, matrix: DeviceMatrix, bias: torch.Tensor | None) -> torch.Tensor:
    """Return x [T, in] @ weight.T + bias in x's type, for at most MAX_DIRECT_TOKENS tokens."""
    num_tokens, (num_out, num_in) = len(x), matrix.shape
    assert num_tokens <= MAX_DIRECT_TOKENS
    num_blocks = triton.cdiv(num_out, _OUTPUTS)
    per_step = INPUTS * 8 // matrix.bits
    num_splits = max(min(_WANTED_PROGRAMS // num_blocks, _MAX_SPLITS, num_in // _MIN_SPLIT_INPUTS), 1)
    out = x.new_empty(num_tokens, num_out)
    parts = out if num_splits == 1 else x.new_empty(num_splits, num_tokens, num_out, dtype=torch.float32)
    _multiply[(num_blocks, num_splits)](
        x,
        *_operands(matrix),
        out if bias is None else bias,
        parts,
        x.stride(0),
        matrix.levels.stride(0),
        num_tokens,
        num_out,
        matrix.scales.shape[1],
        num_in=num_in,
        split_size=triton.cdiv(num_in, num_splits * per_step) * per_step,
        has_bias=bias is not None and num_splits == 1,
        num_m=_FEW_TOKENS if num_tokens <= _FEW_TOKENS else MAX_DIRECT_TOKENS,
        num_warps=4,
        num_stages=4,
        **_options(matrix),
    )
    if num_splits > 1:
        size = out.numel()
        _join[(triton.cdiv(size, _JOIN_BLOCK),)](
            parts, out if bias is None else bias, out, size, num_out, num_splits, bias is not None, _JOIN_BLOCK
        )
    return out


def expand(matrix: DeviceMatrix, dtype: torch.dtype, rows: torch.Tensor | None = None) -> torch.Tensor:
    """Return the weights [out, in] in `dtype`, or those of some `rows`, int64 [T]."""
    num_rows, num_in = matrix.shape[0] if rows is None else len(rows), matrix.shape[1]
    out = matrix.levels.new_empty(num_rows, num_in, dtype=dtype)
    grid = (triton.cdiv(num_rows, _OUTPUTS), triton.cdiv(matrix.levels.shape[1], INPUTS))
    _expand[grid](
        *_operands(matrix),
        matrix.levels if rows is None else rows,
        out,
        matrix.levels.stride(0),
        num_rows,
        matrix.scales.shape[1],
        num_in=num_in,
        has_rows=rows is not None,
        **_options(matrix),
    )
    return out


def _operands(matrix: DeviceMatrix) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return matrix.levels, matrix.scales, matrix.scales if matrix.offsets is None else matrix.offsets


def _options(matrix: DeviceMatrix) -> dict[str, int | bool]:
    # One group that has all inputs may have any size; rounded up, it is a multiple of the inputs of an iteration.
    group = matrix.group_size if matrix.scales.shape[1] > 1 else triton.cdiv(matrix.shape[1], 2 * INPUTS) * 2 * INPUTS
    kind = {"bits": matrix.bits, "has_offsets": matrix.offsets is not None, "is_float": matrix.is_float}
    return kind | {"group": group, "num_n": _OUTPUTS, "num_k": INPUTS}
