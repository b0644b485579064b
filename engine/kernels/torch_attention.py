"""Attention over a block pool in plain torch, one entry of the plan after the other: the definition of a `Backend`.

Letters: T tokens, H query heads, G KV heads, D head size, E entries of the decode plan.
"""

from __future__ import annotations

import torch

from engine.kernels.float8_kv import from_stored, indexable, to_stored
from engine.kernels.interface import AttentionWindow
from engine.kernels.launch import (
    ITEM_WIDTH,
    KEY_ALIGNMENT,
    AttentionLayer,
    Backend,
    DecodeParts,
    DevicePlan,
    HeadUpdate,
    Partial,
    SplitRule,
)
from engine.kernels.reference import attend_one


def store(qkv: torch.Tensor, slot_mapping: torch.Tensor, update: HeadUpdate, layer: AttentionLayer) -> torch.Tensor:
    """Norm and rotation are computed in float32 and rounded once."""
    shape, block_size = layer.shape, layer.kv.shape[3]
    num_keyed = shape.num_heads + shape.num_kv_heads
    heads = qkv.reshape(len(qkv), -1, shape.head_dim).clone()  # [T, heads, D]
    keyed = heads[:, :num_keyed].float()
    if update.norm_weight is not None:
        keyed = keyed * torch.rsqrt(keyed.square().mean(-1, keepdim=True) + update.eps) * update.norm_weight
    if update.lookup is not None:
        # Looked up anew in each layer, because a captured launch must not remember the positions of an earlier step.
        cos, sin = update.lookup.table.index_select(0, update.lookup.positions).split((1, 2), 2)
        halves = keyed.unflatten(2, (2, -1))  # [T, heads, 2, D/2]
        keyed = (halves * cos.float() + halves.flip(2) * sin.float()).flatten(2)
    heads[:, :num_keyed] = keyed
    is_stored = slot_mapping >= 0
    slots = slot_mapping[is_stored]
    kv = heads[is_stored, shape.num_heads :].unflatten(1, (shape.num_planes, shape.num_kv_heads))
    indexable(layer.kv)[slots // block_size, :, :, slots % block_size] = to_stored(kv, layer.scales)
    return heads[:, : shape.num_heads].flatten(1)


def attend_chunks(queries: torch.Tensor, out: torch.Tensor, plan: DevicePlan, layer: AttentionLayer) -> None:
    for slot, first, num_tokens, first_position in plan.chunk_plan.tolist():
        if num_tokens:
            tables = plan.block_tables[slot]
            _attend(queries, out, tables, first, first + num_tokens, first_position + num_tokens, layer)


def split(decode_plan: torch.Tensor, window: AttentionWindow, rule: SplitRule) -> DecodeParts:
    """Surplus items have zeros."""
    rows, starts = [], [0]
    for slot, token, context_len in decode_plan.tolist():
        visible = 0
        if window.size is not None:
            visible = max(context_len - window.size, 0)
        elif window.chunk is not None:
            visible = max(context_len - 1, 0) // window.chunk * window.chunk
        first = visible // KEY_ALIGNMENT * KEY_ALIGNMENT
        num_tiles = -(-(context_len - first) // KEY_ALIGNMENT)
        size = max(-(-num_tiles // rule.max_parts) * KEY_ALIGNMENT, rule.part_tokens)
        begins = range(first, context_len, size)
        rows += [
            [slot, token, visible, begin, min(begin + size, context_len), len(begins), part, 0]
            for part, begin in enumerate(begins)
        ]
        starts.append(len(rows))
    rows += [[0] * ITEM_WIDTH] * (len(decode_plan) * rule.max_parts - len(rows))
    items, device = torch.tensor(rows, dtype=torch.int32).view(-1, ITEM_WIDTH), decode_plan.device
    return DecodeParts(items.to(device), torch.tensor(starts, dtype=torch.int32, device=device))


def attend_decode(
    queries: torch.Tensor,
    out: torch.Tensor,
    plan: DevicePlan,
    _parts: DecodeParts,
    _partial: Partial,
    layer: AttentionLayer,
) -> None:
    """The division into parts changes only the rounding, so rows are computed whole."""
    for slot, token, context_len in plan.decode_plan.tolist():
        if context_len:
            _attend(queries, out, plan.block_tables[slot], token, token + 1, context_len, layer)


def _attend(
    queries: torch.Tensor,
    out: torch.Tensor,
    table: torch.Tensor,
    first: int,
    last: int,
    context_len: int,
    layer: AttentionLayer,
) -> None:
    """Compute tokens [first, last), the last ones of a context whose blocks are `table`."""
    shape, block_size = layer.shape, layer.kv.shape[3]
    query = queries[first:last, : shape.query_width].unflatten(1, (shape.num_heads, shape.head_dim))  # [t, H, D]
    positions = torch.arange(context_len, device=queries.device)
    blocks = table.long().index_select(0, positions // block_size)
    stored = indexable(layer.kv)[blocks, :, :, positions % block_size]  # [context, planes, G, D]
    seen = from_stored(stored, layer.scales)
    keys, values = seen[:, 0], seen[:, -1, :, : shape.output_head_dim]
    with torch.device(queries.device):
        out[first:last, : shape.output_width] = attend_one(query, keys, values, shape, layer.window, layer.sinks)


BACKEND = Backend(store, attend_chunks, split, attend_decode)
