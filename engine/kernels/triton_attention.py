"""Attention over a block pool in Triton: chunk rows, and decode rows in parts.

A program has tokens of one row and up to 16 query heads of one KV head: tokens and heads are the rows of one matrix.
Keys are read in tiles that start at multiples of the tile size, so a token's result does not depend on how its prompt
was chunked. Sums are float32. `engine.kernels.torch_attention` is the definition. Compatible with Triton 3.6 and later;
importing it needs Triton, and with TRITON_INTERPRET=1 it runs on a CPU.

Does not import `annotations` from `__future__`, because Triton evaluates those of its kernels.

Letters: M rows of a program (tokens × heads), N keys of a tile, D head size, V value size.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from engine.arrays import ceil_div
from engine.kernels.interface import FULL_ATTENTION, AttentionShape
from engine.kernels.launch import (
    AttentionLayer,
    Backend,
    DecodeParts,
    DevicePlan,
    Partial,
    chunk_tokens,
    heads_per_program,
)
from engine.kernels.triton_parts import join_parts, split
from engine.kernels.triton_scan import scan
from engine.kernels.triton_store import store

_LOG2_E = tl.constexpr(1.4426950408889634)
_MIN_PROGRAMS = 1_024  # smallest number of programs of a decode launch: more than a device runs at once


@triton.jit(do_not_specialize=["table_stride"])
def _attend_chunks(
    queries, kv, out, sinks, key_scales, value_scales, plan, tables, query_stride, out_stride, table_stride, scale, cap,
    window, chunk, kv_block, kv_plane: tl.constexpr, kv_head: tl.constexpr, kv_token: tl.constexpr,
    block_size: tl.constexpr, group: tl.constexpr, heads: tl.constexpr, head_dim: tl.constexpr, rest_dim: tl.constexpr,
    value_dim: tl.constexpr, num_m: tl.constexpr, num_n: tl.constexpr, num_d: tl.constexpr, num_e: tl.constexpr,
    num_v: tl.constexpr, has_softcap: tl.constexpr, has_window: tl.constexpr, has_chunk: tl.constexpr,
    has_sinks: tl.constexpr, has_scales: tl.constexpr,
):  # fmt: skip
    entry, part = tl.program_id(1), tl.program_id(0)
    num_tokens = tl.load(plan + entry * 4 + 2)
    if num_tokens == 0:
        return
    slot = tl.load(plan + entry * 4)
    first_token = tl.load(plan + entry * 4 + 1)
    first_position = tl.load(plan + entry * 4 + 3)
    parts_each: tl.constexpr = (group + heads - 1) // heads
    m = tl.arange(0, num_m)
    token = m // heads
    head_in_group = (part % parts_each) * heads + m % heads
    head = part // parts_each * group + head_in_group
    is_row = (token < num_tokens) & (head_in_group < group)
    at = (first_token + token).to(tl.int64)
    d = tl.arange(0, num_d)
    v = tl.arange(0, num_v)
    query_at = queries + (at * query_stride + head * (head_dim + rest_dim))[:, None]
    query = tl.load(query_at + d[None, :], mask=is_row[:, None] & (d < head_dim)[None, :], other=0.0)  # [M, D]
    rest = query
    if num_e > 0:
        e = tl.arange(0, num_e)
        is_rest = is_row[:, None] & (e < rest_dim)[None, :]
        rest = tl.load(query_at + head_dim + e[None, :], mask=is_rest, other=0.0)  # [M, E]
    peak = tl.full([num_m], float("-inf"), tl.float32)
    total = tl.zeros([num_m], tl.float32)
    if has_sinks:
        peak = tl.load(sinks + head, mask=is_row, other=0.0).to(tl.float32) * _LOG2_E
        total += 1.0
    position = first_position + token
    begin, lowest = 0, position[:, None]
    if has_window:
        begin, lowest = tl.maximum(first_position - window + 1, 0), (position - window + 1)[:, None]
    if has_chunk:
        begin, lowest = first_position - first_position % chunk, (position - position % chunk)[:, None]
    begin = begin // num_n * num_n
    if has_scales:
        scale *= tl.load(key_scales + part // parts_each)
    peak, total, mixed = scan(
        query, rest, peak, total, tl.zeros([num_m, num_v], tl.float32), kv + part // parts_each * kv_head, tables +
        slot.to(tl.int64) * table_stride, position, lowest, begin, first_position + num_tokens, scale, cap, kv_block,
        kv_plane, kv_token, block_size, head_dim, rest_dim, value_dim, num_n, num_d, num_e, num_v, has_softcap, True,
        has_window or has_chunk,
    )  # fmt: skip
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    if has_scales:
        mixed *= tl.load(value_scales + part // parts_each)
    out_at = out + (at * out_stride + head * value_dim)[:, None] + v[None, :]
    tl.store(out_at, mixed.to(out.dtype.element_ty), mask=is_row[:, None] & (v < value_dim)[None, :])


@triton.jit(do_not_specialize=["table_stride", "num_entries"])
def _attend_decode(
    queries, kv, out, sinks, key_scales, value_scales, items, starts, partial_mixed, partial_weight, tables,
    num_entries, query_stride, out_stride, table_stride, scale, cap, kv_block, kv_plane: tl.constexpr,
    kv_head: tl.constexpr, kv_token: tl.constexpr, block_size: tl.constexpr, num_heads: tl.constexpr,
    group: tl.constexpr, heads: tl.constexpr, head_dim: tl.constexpr, rest_dim: tl.constexpr, value_dim: tl.constexpr,
    num_m: tl.constexpr, num_n: tl.constexpr, num_d: tl.constexpr, num_e: tl.constexpr, num_v: tl.constexpr,
    has_softcap: tl.constexpr, is_bounded: tl.constexpr, has_sinks: tl.constexpr, has_scales: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    num_items = tl.load(starts + num_entries)
    parts_each: tl.constexpr = (group + heads - 1) // heads
    m = tl.arange(0, num_m)
    head_in_group = (part % parts_each) * heads + m
    head = part // parts_each * group + head_in_group
    is_row = (m < heads) & (head_in_group < group)
    if has_scales:
        scale *= tl.load(key_scales + part // parts_each)
    d = tl.arange(0, num_d)
    v = tl.arange(0, num_v)
    for item in range(tl.program_id(1), num_items, tl.num_programs(1)):
        slot = tl.load(items + item * 8)
        token = tl.load(items + item * 8 + 1).to(tl.int64)
        lowest = tl.load(items + item * 8 + 2)
        begin = tl.load(items + item * 8 + 3)
        last = tl.load(items + item * 8 + 4)
        row_part = tl.load(items + item * 8 + 6)
        query_at = queries + token * query_stride + head[:, None] * (head_dim + rest_dim)
        query = tl.load(query_at + d[None, :], mask=is_row[:, None] & (d < head_dim)[None, :], other=0.0)  # [M, D]
        rest = query
        if num_e > 0:
            e = tl.arange(0, num_e)
            is_rest = is_row[:, None] & (e < rest_dim)[None, :]
            rest = tl.load(query_at + head_dim + e[None, :], mask=is_rest, other=0.0)  # [M, E]
        peak = tl.full([num_m], float("-inf"), tl.float32)
        total = tl.zeros([num_m], tl.float32)
        if has_sinks:  # they belong to the row's first part
            sink = tl.load(sinks + head, mask=is_row, other=0.0).to(tl.float32) * _LOG2_E
            peak = tl.where(row_part == 0, sink, peak)
            total = tl.where(row_part == 0, total + 1.0, total)
        peak, total, mixed = scan(
            query, rest, peak, total, tl.zeros([num_m, num_v], tl.float32), kv + part // parts_each * kv_head, tables +
            slot.to(tl.int64) * table_stride, peak, lowest, begin, last, scale, cap, kv_block, kv_plane, kv_token,
            block_size, head_dim, rest_dim, value_dim, num_n, num_d, num_e, num_v, has_softcap, False, is_bounded,
        )  # fmt: skip
        num_parts = tl.load(items + item * 8 + 5)
        token = tl.load(items + item * 8 + 1).to(tl.int64)
        mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
        if has_scales:
            mixed *= tl.load(value_scales + part // parts_each)
        is_stored = is_row[:, None] & (v < value_dim)[None, :]
        if num_parts == 1:
            out_at = out + token * out_stride + head[:, None] * value_dim + v[None, :]
            tl.store(out_at, mixed.to(out.dtype.element_ty), mask=is_stored)
        else:
            at = head.to(tl.int64) + item * num_heads
            tl.store(partial_mixed + at[:, None] * value_dim + v[None, :], mixed, mask=is_stored)
            tl.store(partial_weight + at, peak + tl.log2(total), mask=is_row)


def attend_chunks(queries: torch.Tensor, out: torch.Tensor, plan: DevicePlan, layer: AttentionLayer) -> None:
    """See `engine.kernels.launch.Backend`."""
    shape, heads = layer.shape, heads_per_program(layer.shape)
    _attend_chunks[_num_head_programs(layer), len(plan.chunk_plan)](
        queries,
        layer.kv,
        out,
        out if layer.sinks is None else layer.sinks,
        *((out, out) if layer.scales is None else (layer.scales[0], layer.scales[-1])),
        plan.chunk_plan,
        plan.block_tables,
        queries.stride(0),
        out.stride(0),
        plan.block_tables.stride(0),
        window=layer.window.size or 1,
        chunk=layer.window.chunk or 1,
        num_m=max(triton.next_power_of_2(chunk_tokens(shape, layer.kv.dtype) * heads), 16),
        **tile_of(shape, queries.dtype, is_decode=False),
        has_window=layer.window.size is not None,
        has_chunk=layer.window.chunk is not None,
        **_constants(layer),
    )


def attend_decode(
    queries: torch.Tensor,
    out: torch.Tensor,
    plan: DevicePlan,
    parts: DecodeParts,
    partial: Partial,
    layer: AttentionLayer,
) -> None:
    """See `engine.kernels.launch.Backend`."""
    attend_parts(queries, out, plan, parts, partial, layer)
    join_parts(out, plan, parts, partial, layer)


def attend_parts(
    queries: torch.Tensor,
    out: torch.Tensor,
    plan: DevicePlan,
    parts: DecodeParts,
    partial: Partial,
    layer: AttentionLayer,
) -> None:
    """Write rows of one part to `out` and all other parts to `partial`."""
    shape, num_entries = layer.shape, len(plan.decode_plan)
    num_head_programs = _num_head_programs(layer)
    num_columns = min(max(num_entries + num_entries // 4, ceil_div(_MIN_PROGRAMS, num_head_programs)), len(parts.items))
    _attend_decode[num_head_programs, num_columns](
        queries,
        layer.kv,
        out,
        out if layer.sinks is None else layer.sinks,
        *((out, out) if layer.scales is None else (layer.scales[0], layer.scales[-1])),
        parts.items,
        parts.starts,
        partial.mixed,
        partial.weight,
        plan.block_tables,
        num_entries,
        queries.stride(0),
        out.stride(0),
        plan.block_tables.stride(0),
        num_heads=shape.num_heads,
        num_m=16,
        **tile_of(shape, queries.dtype, is_decode=True, is_float8=layer.scales is not None),
        is_bounded=layer.window != FULL_ATTENTION,
        **_constants(layer),
    )


def _num_head_programs(layer: AttentionLayer) -> int:
    """Return the number of programs per token: one per KV head and 16 of its query heads."""
    shape = layer.shape
    return shape.num_kv_heads * ceil_div(shape.num_heads // shape.num_kv_heads, heads_per_program(shape))


def _constants(layer: AttentionLayer) -> dict[str, Any]:
    """Return the arguments that both kernels have."""
    shape, softcap = layer.shape, layer.shape.softcap
    kv_block, kv_plane, kv_head, kv_token, _ = layer.kv.stride()
    head_dim, rest_dim = _divided(shape)
    return {
        "scale": shape.score_scale * _LOG2_E.value if softcap is None else shape.score_scale / softcap,
        "cap": (softcap or 1.0) * _LOG2_E.value,
        "kv_block": kv_block,
        "kv_plane": kv_plane if shape.num_planes == 2 else 0,
        "kv_head": kv_head,
        "kv_token": kv_token,
        "block_size": layer.kv.shape[3],
        "group": shape.num_heads // shape.num_kv_heads,
        "heads": heads_per_program(shape),
        "head_dim": head_dim,
        "rest_dim": rest_dim,
        "value_dim": shape.output_head_dim,
        "num_d": _padded(head_dim),
        "num_e": _padded(rest_dim) if rest_dim else 0,
        "num_v": _padded(shape.output_head_dim),
        "has_softcap": softcap is not None,
        "has_sinks": layer.sinks is not None,
        "has_scales": layer.scales is not None,
    }


def tile_of(shape: AttentionShape, dtype: torch.dtype, *, is_decode: bool, is_float8: bool = False) -> dict[str, int]:
    """Return the keys per tile, warps and stages of a program.

    Tiles are the largest of which two, of keys and values, fit into a multiprocessor's shared memory beside those of
    other programs. Float32 products are unrolled by the compiler, which takes a minute for large ones. A third stage
    makes loads of block tables asynchronous, but takes registers that programs of decode rows need. So does the
    conversion of wide keys from 8-bit floats.
    """
    width = _padded(_divided(shape)[0])
    if width > 256:
        return {"num_n": 16 if dtype == torch.float32 else 32, "num_warps": 8, "num_stages": 2}
    is_narrow = dtype == torch.float32 or (is_decode and is_float8 and width > 128)
    num_keys = 16 if is_narrow else 64 if width <= 128 else 32
    return {"num_n": num_keys, "num_warps": 4, "num_stages": 2 if is_decode else 3}


def _divided(shape: AttentionShape) -> tuple[int, int]:
    """Return the numbers of a key that are read first, and how many others it has: latent values are part of keys."""
    first = shape.value_dim or shape.head_dim
    return first, shape.head_dim - first


def _padded(size: int) -> int:
    """Return the smallest size of a matrix product that `size` fits into."""
    return max(triton.next_power_of_2(size), 16)


BACKEND = Backend(store, attend_chunks, split, attend_decode)
