"""Division of decode rows into parts in Triton, see `engine.kernels.launch.DecodeParts`, and the sums of parts.

Every program of the division counts the parts of all rows and writes those of its own row, so one launch is enough.
`engine.kernels.torch_attention` is the definition. Does not import `annotations` from `__future__`, because
Triton evaluates those of its kernels.
"""

import torch
import triton
import triton.language as tl

from engine.arrays import ceil_div
from engine.kernels.interface import AttentionWindow
from engine.kernels.launch import (
    ITEM_WIDTH,
    KEY_ALIGNMENT,
    AttentionLayer,
    DecodeParts,
    DevicePlan,
    Partial,
    SplitRule,
)

_FEW_ROWS = 32


@triton.jit
def _parts(
    context_len, window, chunk, size: tl.constexpr, max_parts: tl.constexpr, tile: tl.constexpr,
    has_window: tl.constexpr, has_chunk: tl.constexpr,
):  # fmt: skip
    """Return first visible key, first key of a tile, keys per part and number of parts (0 for a context of 0)."""
    visible = context_len * 0
    if has_window:
        visible = tl.maximum(context_len - window, 0)
    if has_chunk:
        visible = tl.maximum(context_len - 1, 0) // chunk * chunk
    first = visible // tile * tile
    num_tiles = (context_len - first + tile - 1) // tile
    part = tl.maximum((num_tiles + max_parts - 1) // max_parts * tile, size)
    return visible, first, part, (context_len - first + part - 1) // part


@triton.jit(do_not_specialize=["num_entries"])
def _split(
    plan, items, starts, num_entries, window, chunk, size: tl.constexpr, max_parts: tl.constexpr, tile: tl.constexpr,
    has_window: tl.constexpr, has_chunk: tl.constexpr, num_e: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(0)
    e = tl.arange(0, num_e)
    context_lens = tl.load(plan + e * 3 + 2, mask=e < entry, other=0)
    _, _, _, counts = _parts(context_lens, window, chunk, size, max_parts, tile, has_window, has_chunk)
    start = tl.sum(counts, 0)
    slot = tl.load(plan + entry * 3)
    token = tl.load(plan + entry * 3 + 1)
    context_len = tl.load(plan + entry * 3 + 2)
    visible, first, size_each, count = _parts(context_len, window, chunk, size, max_parts, tile, has_window, has_chunk)
    tl.store(starts + entry, start)
    if entry == num_entries - 1:
        tl.store(starts + entry + 1, start + count)
    part = tl.arange(0, max_parts)
    item = items + (start + part) * 8
    begin = first + part * size_each
    tl.store(item, slot + part * 0, mask=part < count)
    tl.store(item + 1, token + part * 0, mask=part < count)
    tl.store(item + 2, visible + part * 0, mask=part < count)
    tl.store(item + 3, begin, mask=part < count)
    tl.store(item + 4, tl.minimum(begin + size_each, context_len), mask=part < count)
    tl.store(item + 5, count + part * 0, mask=part < count)
    tl.store(item + 6, part, mask=part < count)


@triton.jit(do_not_specialize=["heads_each"])
def _join(
    out, plan, starts, partial_mixed, partial_weight, out_stride, heads_each, num_heads: tl.constexpr,
    value_dim: tl.constexpr, max_parts: tl.constexpr, num_v: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(1)
    first = tl.load(starts + entry)
    num_parts = tl.load(starts + entry + 1) - first
    if num_parts <= 1:
        return
    part = tl.arange(0, max_parts)
    v = tl.arange(0, num_v)
    is_part = part < num_parts
    is_loaded = is_part[:, None] & (v < value_dim)[None, :]
    out_at = out + tl.load(plan + entry * 3 + 1).to(tl.int64) * out_stride + v
    begin = tl.program_id(0) * heads_each
    for head in range(begin, tl.minimum(begin + heads_each, num_heads)):
        at = (first + part).to(tl.int64) * num_heads + head
        weight = tl.load(partial_weight + at, mask=is_part, other=float("-inf"))
        weight = tl.exp2(weight - tl.max(weight, 0))
        mixed = tl.load(partial_mixed + at[:, None] * value_dim + v[None, :], mask=is_loaded, other=0.0)
        mixed = tl.sum(mixed * weight[:, None], 0) / tl.sum(weight, 0)
        tl.store(out_at + head * value_dim, mixed.to(out.dtype.element_ty), mask=v < value_dim)


def split(decode_plan: torch.Tensor, window: AttentionWindow, rule: SplitRule) -> DecodeParts:
    """See `engine.kernels.launch.Backend`. Surplus items are undefined."""
    num_entries = len(decode_plan)
    items = decode_plan.new_empty(num_entries * rule.max_parts, ITEM_WIDTH)
    starts = decode_plan.new_empty(num_entries + 1)
    _split[(num_entries,)](
        decode_plan,
        items,
        starts,
        num_entries,
        window.size or 1,
        window.chunk or 1,
        size=rule.part_tokens,
        max_parts=rule.max_parts,
        tile=KEY_ALIGNMENT,
        has_window=window.size is not None,
        has_chunk=window.chunk is not None,
        num_e=max(triton.next_power_of_2(num_entries), 256),  # one compilation for all usual sizes
        num_warps=1,
    )
    return DecodeParts(items, starts)


def join_parts(
    out: torch.Tensor, plan: DevicePlan, parts: DecodeParts, partial: Partial, layer: AttentionLayer
) -> None:
    """Write the sums of rows of more than one part to `out`."""
    shape, num_entries = layer.shape, len(plan.decode_plan)
    heads_each = 1 if num_entries <= _FEW_ROWS else 4  # most rows of a large batch have one part: fewer programs
    _join[ceil_div(shape.num_heads, heads_each), num_entries](
        out,
        plan.decode_plan,
        parts.starts,
        partial.mixed,
        partial.weight,
        out.stride(0),
        heads_each,
        num_heads=shape.num_heads,
        value_dim=shape.output_head_dim,
        max_parts=len(parts.items) // num_entries,
        num_v=triton.next_power_of_2(shape.output_head_dim),
        num_warps=4 if shape.output_head_dim <= 128 else 8,
        num_stages=1,
    )
