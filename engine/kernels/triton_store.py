"""Head norms, rotation and KV write in one Triton kernel.

A program has up to 16 heads of one token. Cosines and sines are read from the position table. Sums are float32, results
are rounded once. `engine.kernels.torch_attention.store` is the definition. Does not import `annotations` from
`__future__`, because Triton evaluates those of its kernels.

Letters: T tokens, H query heads, G KV heads, D head size.
"""

import torch
import triton
import triton.language as tl

from engine.arrays import ceil_div
from engine.kernels.launch import AttentionLayer, HeadUpdate
from engine.kernels.triton_fused import to_float8

_NUMBERS = 2_048  # numbers that one program stores


@triton.jit
def _store(
    qkv,
    queries,
    kv,
    weights,
    table,
    positions,
    slots,
    scales,
    qkv_stride,
    query_stride,
    kv_block,
    eps,
    kv_plane: tl.constexpr,
    kv_head: tl.constexpr,
    kv_token: tl.constexpr,
    block_size: tl.constexpr,
    first_head: tl.constexpr,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    num_planes: tl.constexpr,
    head_dim: tl.constexpr,
    num_h: tl.constexpr,
    num_d: tl.constexpr,
    has_norm: tl.constexpr,
    has_rotation: tl.constexpr,
    has_scales: tl.constexpr,
):
    token = tl.program_id(1).to(tl.int64)
    head = first_head + tl.program_id(0) * num_h + tl.arange(0, num_h)
    d = tl.arange(0, num_d)
    half: tl.constexpr = (head_dim + 1) // 2
    is_head = head < num_heads + num_planes * num_kv_heads
    is_keyed = (head < num_heads + num_kv_heads)[:, None]
    in_first = is_head[:, None] & (d < half)[None, :]
    in_second = is_head[:, None] & (d + half < head_dim)[None, :]
    source = qkv + token * qkv_stride + head[:, None] * head_dim + d[None, :]
    a = tl.load(source, mask=in_first, other=0.0).to(tl.float32)  # [heads, D/2]
    b = tl.load(source + half, mask=in_second, other=0.0).to(tl.float32)
    if has_norm:
        factor = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / head_dim + eps)[:, None]
        weight_at = weights + head[:, None] * head_dim + d[None, :]
        a = tl.where(is_keyed, a * factor * tl.load(weight_at, mask=in_first & is_keyed, other=0.0), a)
        b = tl.where(is_keyed, b * factor * tl.load(weight_at + half, mask=in_second & is_keyed, other=0.0), b)
    if has_rotation:
        row = table + tl.load(positions + token) * (3 * half) + d
        cos = tl.load(row, mask=d < half, other=0.0).to(tl.float32)[None, :]
        sin = tl.load(row + 2 * half, mask=d < half, other=0.0).to(tl.float32)[None, :]
        rotated = a * cos - b * sin
        b = tl.where(is_keyed, b * cos + a * sin, b)
        a = tl.where(is_keyed, rotated, a)
    if first_head == 0:
        is_query = (head < num_heads)[:, None]
        query_at = queries + token * query_stride + head[:, None] * head_dim + d[None, :]
        tl.store(query_at, a.to(queries.dtype.element_ty), mask=in_first & is_query)
        tl.store(query_at + half, b.to(queries.dtype.element_ty), mask=in_second & is_query)
    slot = tl.load(slots + token)
    is_stored = (head >= tl.where(slot < 0, 1 << 30, num_heads))[:, None]  # padding has slot -1
    vector = tl.maximum(head - num_heads, 0)
    if has_scales:
        scale = tl.load(scales + vector, mask=is_head & (head >= num_heads), other=1.0)[:, None]
        a, b = to_float8(a, scale), to_float8(b, scale)
    offset = vector // num_kv_heads * kv_plane + vector % num_kv_heads * kv_head
    slot = tl.maximum(slot, 0)
    kv_at = kv + slot // block_size * kv_block + slot % block_size * kv_token + offset[:, None] + d[None, :]
    tl.store(kv_at, a.to(kv.dtype.element_ty), mask=in_first & is_stored)
    tl.store(kv_at + half, b.to(kv.dtype.element_ty), mask=in_second & is_stored)


def store(qkv: torch.Tensor, slot_mapping: torch.Tensor, update: HeadUpdate, layer: AttentionLayer) -> torch.Tensor:
    """See `engine.kernels.launch.Backend`. Queries of latent attention, which are wider than its output and never
    change here, are not copied."""
    shape, weight, lookup = layer.shape, update.norm_weight, update.lookup
    is_copied = shape.value_dim is None
    queries = qkv.new_empty(len(qkv), shape.query_width) if is_copied else qkv
    kv_block, kv_plane, kv_head, kv_token, _ = layer.kv.stride()
    first_head = 0 if is_copied else shape.num_heads
    num_heads = shape.num_heads + shape.num_planes * shape.num_kv_heads - first_head
    num_d = triton.next_power_of_2((shape.head_dim + 1) // 2)
    num_h = min(max(_NUMBERS // (2 * num_d), 1), triton.next_power_of_2(num_heads))
    _store[ceil_div(num_heads, num_h), len(qkv)](
        qkv,
        queries,
        layer.kv,
        qkv if weight is None else weight,
        qkv if lookup is None else lookup.table,
        slot_mapping if lookup is None else lookup.positions,
        slot_mapping,
        qkv if layer.scales is None else layer.scales,
        qkv.stride(0),
        queries.stride(0),
        kv_block,
        update.eps,
        kv_plane=kv_plane,
        kv_head=kv_head,
        kv_token=kv_token,
        block_size=layer.kv.shape[3],
        first_head=first_head,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        num_planes=shape.num_planes,
        head_dim=shape.head_dim,
        num_h=num_h,
        num_d=num_d,
        has_norm=weight is not None,
        has_rotation=lookup is not None,
        has_scales=layer.scales is not None,
        num_warps=4,
    )
    return queries
