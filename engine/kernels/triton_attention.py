"""Paged attention in Triton: one program per block of one row's tokens and up to 16 query heads of one KV head.

Tokens and heads are the rows of one matrix, so that decode fills matrix units with its heads. Keys are read in tiles
that start at multiples of the tile size, so a token's result does not depend on how its prompt was chunked. Sums are
float32. `engine.kernels.paged_attention.attend_slowly` is the definition. Compatible with Triton 3.6 and later;
importing it needs Triton, and with TRITON_INTERPRET=1 it runs on a CPU.

Does not import `annotations` from `__future__`, because Triton evaluates those of its kernels.

Letters: M rows of a program (tokens × heads), N keys of a tile, D head size, V value size.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.launch import AttentionLayer, StepBlocks, heads_per_program


@triton.jit(do_not_specialize=["table_stride"])
def _attend(
    qkv,
    kv,
    out,
    sinks,
    plan,
    tables,
    qkv_stride,
    kv_stride,
    out_stride,
    table_stride,
    scale,
    softcap,
    window,
    chunk,
    block_size: tl.constexpr,
    group: tl.constexpr,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    value_dim: tl.constexpr,
    first_value: tl.constexpr,
    num_m: tl.constexpr,
    num_n: tl.constexpr,
    num_d: tl.constexpr,
    num_v: tl.constexpr,
    has_softcap: tl.constexpr,
    has_window: tl.constexpr,
    has_chunk: tl.constexpr,
    has_sinks: tl.constexpr,
):
    block, part = tl.program_id(0), tl.program_id(1)
    parts_each: tl.constexpr = (group + heads - 1) // heads
    kv_head = part // parts_each
    row = tl.load(plan + block * 4)
    first_token = tl.load(plan + block * 4 + 1)
    num_tokens = tl.load(plan + block * 4 + 2)
    first_position = tl.load(plan + block * 4 + 3)

    m = tl.arange(0, num_m)
    token = m // heads
    head_in_group = (part % parts_each) * heads + m % heads
    head = kv_head * group + head_in_group
    is_row = (token < num_tokens) & (head_in_group < group)
    position = first_position + token
    at = (first_token + token).to(tl.int64)

    d = tl.arange(0, num_d)
    v = tl.arange(0, num_v)
    query_at = qkv + (at * qkv_stride + head * head_dim)[:, None] + d[None, :]
    query = tl.load(query_at, mask=is_row[:, None] & (d < head_dim)[None, :], other=0.0)  # [M, D]

    if has_sinks:
        peak = tl.load(sinks + head, mask=is_row, other=0.0).to(tl.float32)  # [M]
        total = tl.full([num_m], 1.0, tl.float32)
    else:
        peak = tl.full([num_m], float("-inf"), tl.float32)
        total = tl.zeros([num_m], tl.float32)
    mixed = tl.zeros([num_m, num_v], tl.float32)

    last = first_position + num_tokens
    begin = 0
    if has_window:
        begin = tl.maximum(first_position - window + 1, 0)
    if has_chunk:
        begin = first_position - first_position % chunk
    begin = begin // num_n * num_n
    for tile in range(begin, last, num_n):
        key_position = tile + tl.arange(0, num_n)
        is_key = key_position < last
        block_id = tl.load(tables + row.to(tl.int64) * table_stride + key_position // block_size, mask=is_key, other=0)
        slot = block_id.to(tl.int64) * block_size + key_position % block_size
        from_slot = kv + slot * kv_stride + kv_head * head_dim
        keys = tl.load(from_slot[:, None] + d[None, :], mask=is_key[:, None] & (d < head_dim)[None, :], other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale  # [M, N]
        if has_softcap:
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)  # tanh, which Triton does not provide
        is_seen = is_key[None, :] & (key_position[None, :] <= position[:, None])
        if has_window:
            is_seen = is_seen & (key_position[None, :] > position[:, None] - window)
        if has_chunk:
            is_seen = is_seen & (key_position[None, :] >= (position - position % chunk)[:, None])
        scores = tl.where(is_seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # no visible key yet
        shrunk = tl.exp(peak - base)
        weights = tl.exp(scores - base[:, None])  # [M, N]
        total = total * shrunk + tl.sum(weights, 1)
        values_at = from_slot[:, None] + first_value + v[None, :]
        values = tl.load(values_at, mask=is_key[:, None] & (v < value_dim)[None, :], other=0.0)  # [N, V]
        mixed = mixed * shrunk[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        peak = higher

    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    out_at = out + (at * out_stride + head * value_dim)[:, None] + v[None, :]
    tl.store(out_at, mixed.to(out.dtype.element_ty), mask=is_row[:, None] & (v < value_dim)[None, :])


def attend(qkv: torch.Tensor, kv: torch.Tensor, blocks: StepBlocks, layer: AttentionLayer) -> torch.Tensor:
    """See `engine.kernels.launch.Launch`."""
    shape, window, sinks = layer.shape, layer.window, layer.sinks
    out = qkv.new_empty(len(qkv), shape.output_width)
    heads, group = heads_per_program(shape), shape.num_heads // shape.num_kv_heads
    width = triton.next_power_of_2(max(shape.head_dim, 16))
    is_wide = width > 256
    num_rows = max(triton.next_power_of_2(blocks.tokens_per_block * heads), 16)
    grid = (len(blocks.plan), shape.num_kv_heads * -(-group // heads))
    _attend[grid](
        qkv,
        kv,
        out,
        out if sinks is None else sinks,
        blocks.plan,
        blocks.block_tables,
        qkv.stride(0),
        kv.stride(0),
        out.stride(0),
        blocks.block_tables.stride(0),
        shape.score_scale,
        shape.softcap or 1.0,
        window.size or 1,
        window.chunk or 1,
        block_size=layer.block_size,
        group=group,
        heads=heads,
        head_dim=shape.head_dim,
        value_dim=shape.output_head_dim,
        first_value=(shape.num_planes - 1) * shape.num_kv_heads * shape.head_dim,
        num_m=num_rows,
        num_n=_keys_per_tile(width, qkv.dtype),
        num_d=width,
        num_v=triton.next_power_of_2(max(shape.output_head_dim, 16)),
        has_softcap=shape.softcap is not None,
        has_window=window.size is not None,
        has_chunk=window.chunk is not None,
        has_sinks=sinks is not None,
        num_warps=8 if is_wide else 4,
        num_stages=1 if is_wide else 2,
    )
    return out


def _keys_per_tile(width: int, dtype: torch.dtype) -> int:
    """Return the most keys for which two tiles of keys and values fit into a multiprocessor's shared memory. Float32
    products are unrolled by the compiler, which takes a minute for large ones."""
    if dtype == torch.float32:
        return 16
    return 64 if width <= 128 else 32 if width <= 256 else 16
