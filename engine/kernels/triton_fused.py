"""Fused operators between matrix products in Triton: residual add + norm, embedding + norm, gated activation, and
rounding of rows to 8-bit floats.

One program per row; the activation has several per row. Sums are float32 in a fixed order, so a row's result does not
depend on other rows. `engine.kernels.reference.Kernels` defines the operators. Compatible with Triton 3.6 and later;
with TRITON_INTERPRET=1 the kernels run on a CPU.

Does not import `annotations` from `__future__`, because Triton evaluates those of its kernels.

Letters: T tokens, C channels, I inner channels of a feed-forward.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.interface import FLOAT8, Activation, Float8Rows, NormConstants

_ACTIVATION_BLOCK = 1024  # outputs per program
_ROUNDING_BLOCK = 4096  # numbers of a row that are read at once
_MAX_FLOAT8 = tl.constexpr(448.0)
_MIN_PEAK = tl.constexpr(1e-12)


@triton.jit
def _normalized(values, weight, bias, i, is_column, width, eps, kind: tl.constexpr, has_bias: tl.constexpr):
    """Return the norm of a row, float32 [block]; `values` are 0 beyond the row."""
    if kind == "none":
        return values
    if kind == "layer":
        values = tl.where(is_column, values - tl.sum(values, 0) / width, 0.0)
    values = values * tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    values = values * tl.load(weight + i, mask=is_column, other=0.0).to(tl.float32)
    if has_bias:
        values += tl.load(bias + i, mask=is_column, other=0.0).to(tl.float32)
    return values


@triton.jit
def to_float8(values, scale):
    """Return values / scale within the range of 8-bit floats, still float32."""
    scaled = values * (1.0 / scale)
    scaled = tl.where(scaled > _MAX_FLOAT8, _MAX_FLOAT8, scaled)  # unlike minimum, keeps NaN
    return tl.where(scaled < -_MAX_FLOAT8, -_MAX_FLOAT8, scaled)


@triton.jit
def _store_row(values, out, scales, row, i, is_column, width, is_float8: tl.constexpr):
    if is_float8:
        scale = tl.maximum(tl.max(tl.abs(values), 0), _MIN_PEAK) / _MAX_FLOAT8
        tl.store(scales + row, scale)
        values = to_float8(values, scale)
    tl.store(out + row * width + i, values.to(out.dtype.element_ty), mask=is_column)


@triton.jit
def _add_norm(
    stream,
    x,
    out,
    scales,
    weight,
    bias,
    before_weight,
    before_bias,
    x_stride,
    multiplier,
    eps,
    before_eps,
    width: tl.constexpr,
    kind: tl.constexpr,
    before: tl.constexpr,
    has_bias: tl.constexpr,
    has_before_bias: tl.constexpr,
    is_float8: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, block)
    is_column = i < width
    added = tl.load(x + row * x_stride + i, mask=is_column, other=0.0).to(tl.float32)
    added = _normalized(added, before_weight, before_bias, i, is_column, width, before_eps, before, has_before_bias)
    at = stream + row * width + i
    total = tl.load(at, mask=is_column, other=0.0) + added * multiplier
    tl.store(at, total, mask=is_column)
    normalized = _normalized(total, weight, bias, i, is_column, width, eps, kind, has_bias)
    _store_row(normalized, out, scales, row, i, is_column, width, is_float8)


@triton.jit
def _embed_norm(
    token_ids,
    table,
    stream,
    out,
    scales,
    weight,
    bias,
    multiplier,
    eps,
    width: tl.constexpr,
    kind: tl.constexpr,
    has_bias: tl.constexpr,
    is_float8: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, block)
    is_column = i < width
    token_id = tl.load(token_ids + row).to(tl.int64)
    values = tl.load(table + token_id * width + i, mask=is_column, other=0.0).to(tl.float32) * multiplier
    tl.store(stream + row * width + i, values, mask=is_column)
    normalized = _normalized(values, weight, bias, i, is_column, width, eps, kind, has_bias)
    _store_row(normalized, out, scales, row, i, is_column, width, is_float8)


@triton.jit
def _gated(gate, up, limit, slope, kind: tl.constexpr, has_limit: tl.constexpr):
    """Return the activation of float32 gate and up. Comparisons instead of minimum and maximum keep NaN."""
    if has_limit:
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, up)
        up = tl.where(up < -limit, -limit, up)
        return gate * tl.sigmoid(gate * slope) * (up + 1.0)
    if kind == "silu":
        activated = gate * tl.sigmoid(gate)
    elif kind == "gelu":
        activated = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    elif kind == "gelu_tanh":  # (1 + tanh(u)) / 2 = sigmoid(2 u)
        activated = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        activated = tl.where(gate < 0.0, 0.0, gate)
    return activated * up


@triton.jit
def _read(x, i, is_column, width, limit, slope, kind: tl.constexpr, has_limit: tl.constexpr):
    """Return columns i of a row of inputs, float32; with a `kind`, of its gated activation."""
    values = tl.load(x + i, mask=is_column, other=0.0).to(tl.float32)
    if kind == "none":
        return values
    up = tl.load(x + width + i, mask=is_column, other=0.0).to(tl.float32)
    return _gated(values, up, limit, slope, kind, has_limit)


@triton.jit
def _activate(
    x,
    out,
    x_stride,
    limit,
    slope,
    width: tl.constexpr,
    kind: tl.constexpr,
    has_limit: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * block + tl.arange(0, block)
    is_column = i < width
    values = _read(x + row * x_stride, i, is_column, width, limit, slope, kind, has_limit)
    tl.store(out + row * width + i, values.to(out.dtype.element_ty), mask=is_column)


@triton.jit
def _round_rows(
    x,
    out,
    scales,
    x_stride,
    limit,
    slope,
    width: tl.constexpr,
    kind: tl.constexpr,
    has_limit: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    peaks = tl.zeros([block], tl.float32)
    for start in range(0, width, block):
        i = start + tl.arange(0, block)
        values = _read(x, i, i < width, width, limit, slope, kind, has_limit)
        peaks = tl.maximum(peaks, tl.where(i < width, tl.abs(values), 0.0))
    scale = tl.maximum(tl.max(peaks, 0), _MIN_PEAK) / _MAX_FLOAT8
    tl.store(scales + row, scale)
    for start in range(0, width, block):
        i = start + tl.arange(0, block)
        values = to_float8(_read(x, i, i < width, width, limit, slope, kind, has_limit), scale)
        tl.store(out + row * width + i, values.to(out.dtype.element_ty), mask=i < width)


def add_norm(
    stream: torch.Tensor,
    x: torch.Tensor,
    multiplier: float,
    norm: NormConstants,
    before: NormConstants | None = None,
) -> torch.Tensor:
    """See `engine.kernels.reference.Kernels.add_norm`. Rows of x may be strided."""
    out, scales = _empty_rows(stream, norm.dtype)
    first = before or NormConstants("none", norm.dtype)
    _add_norm[(len(stream),)](
        stream,
        x,
        out,
        scales,
        *_pointers(norm, stream),
        *_pointers(first, stream),
        x.stride(0),
        float(multiplier),
        norm.eps,
        first.eps,
        kind=norm.kind,
        before=first.kind,
        has_bias=norm.bias is not None,
        has_before_bias=first.bias is not None,
        **_row_options(stream.shape[1], norm.dtype),
    )
    return _result(out, scales, norm.dtype)


def embed_norm(
    token_ids: torch.Tensor, table: torch.Tensor, multiplier: float, norm: NormConstants
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `engine.kernels.reference.Kernels.embed_norm`."""
    stream = table.new_empty(len(token_ids), table.shape[1], dtype=torch.float32)
    out, scales = _empty_rows(stream, norm.dtype)
    _embed_norm[(len(token_ids),)](
        token_ids,
        table,
        stream,
        out,
        scales,
        *_pointers(norm, stream),
        float(multiplier),
        norm.eps,
        kind=norm.kind,
        has_bias=norm.bias is not None,
        **_row_options(table.shape[1], norm.dtype),
    )
    return stream, _result(out, scales, norm.dtype)


def activate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return the gated activation [T, I] of x [T, 2 I] in x's type."""
    width = x.shape[1] // 2
    out = x.new_empty(len(x), width)
    grid = (len(x), triton.cdiv(width, _ACTIVATION_BLOCK))
    options = _gate_options(activation)
    _activate[grid](
        x, out, x.stride(0), *options, width, activation.kind, block=_ACTIVATION_BLOCK, **_limit(activation)
    )
    return out


def round_rows(x: torch.Tensor, activation: Activation | None = None) -> Float8Rows:
    """Return rows x [T, C], or their gated activation [T, C / 2], as 8-bit floats."""
    width = x.shape[1] // (1 if activation is None else 2)
    out, scales = x.new_empty(len(x), width, dtype=FLOAT8), x.new_empty(len(x), 1, dtype=torch.float32)
    kind, options = ("none", (0.0, 0.0)) if activation is None else (activation.kind, _gate_options(activation))
    block = min(triton.next_power_of_2(width), _ROUNDING_BLOCK)
    limit = _limit(activation)
    _round_rows[(len(x),)](x, out, scales, x.stride(0), *options, width, kind, block=block, num_warps=8, **limit)
    return Float8Rows(out, scales)


def _empty_rows(stream: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tensors for results and scales; without scales, the results twice."""
    out = torch.empty_like(stream, dtype=dtype)
    return out, stream.new_empty(len(stream), 1) if dtype == FLOAT8 else out


def _result(out: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return Float8Rows(out, scales).as_operand() if dtype == FLOAT8 else out


def _pointers(norm: NormConstants, unused: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return unused if norm.weight is None else norm.weight, unused if norm.bias is None else norm.bias


def _row_options(width: int, dtype: torch.dtype) -> dict[str, int | bool]:
    block = triton.next_power_of_2(width)
    num_warps = 4 if block <= 2048 else 8 if block <= 4096 else 16
    return {"width": width, "is_float8": dtype == FLOAT8, "block": block, "num_warps": num_warps}


def _gate_options(activation: Activation) -> tuple[float, float]:
    return float(activation.limit or 0.0), float(activation.slope)


def _limit(activation: Activation | None) -> dict[str, bool]:
    return {"has_limit": activation is not None and activation.limit is not None}
