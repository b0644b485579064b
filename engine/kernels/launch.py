"""Operands of attention on a device: a step's plan, the division of decode rows into parts, a layer's constants.

A step has two launches per layer: chunk rows in blocks of several tokens, and decode rows, whose context is divided
into parts that a third launch joins. Launches have static sizes: entries beyond a step's rows have zeros, and their
programs store nothing. The host computes the plan, or a kernel that runs before the forward pass.

Letters: T tokens, R rows, H query heads, D head size, C entries of the chunk plan, E entries of the decode plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from engine.arrays import Ints, ceil_div, segment_offsets
from engine.kernels.interface import AttentionShape, AttentionWindow, RotaryLookup

KEY_ALIGNMENT = 64  # parts start at multiples of this position; tiles of keys divide it
ITEM_WIDTH = 8
_MOST_HEADS = 16  # query heads of one KV head per program
_SLOT, _FIRST_TOKEN, _NUM_TOKENS, _FIRST_POSITION = range(4)


@dataclass(frozen=True, eq=False)
class DevicePlan:
    """A step on the device, all that `PagedAttention.begin` needs. Sizes may exceed the step's: see `write_plans`.

    `slot` is the row of `block_tables`. Tokens whose slot mapping is -1 are padding: their KV is not stored, and their
    output is finite if their input is.
    """

    chunk_plan: torch.Tensor  # int32 [C, 4]: slot, first token in T, number of tokens, position of the first
    decode_plan: torch.Tensor  # int32 [E, 3]: slot, token, context length
    block_tables: torch.Tensor  # int32 [slots, max blocks]
    slot_mapping: torch.Tensor  # int64 [T]


@dataclass(frozen=True)
class SplitRule:
    """The division of a context into parts, which depends on nothing but the context's length and window.

    Parts have at least `part_tokens` keys, except the last; longer contexts have `max_parts` longer parts.
    """

    part_tokens: int
    max_parts: int


@dataclass(frozen=True, eq=False)
class DecodeParts:
    """The parts of all decode rows for one window. Row e has items [starts[e], starts[e + 1])."""

    items: torch.Tensor  # int32 [E × max parts, 8]: slot, token, visible, first, last + 1, parts, part
    starts: torch.Tensor  # int32 [E + 1]


@dataclass(frozen=True, eq=False)
class Partial:
    """Memory for results of parts: mixed values, and the logarithm to base 2 of the sum of their weights."""

    mixed: torch.Tensor  # float32 [items, H, value size]
    weight: torch.Tensor  # float32 [items, H]


@dataclass(frozen=True, eq=False)
class HeadUpdate:
    """Changes of queries and keys before attention: an RMS norm of each head, then rotation. Either may be missing."""

    norm_weight: torch.Tensor | None = None  # float32 [query and key heads, D]
    eps: float = 0.0
    lookup: RotaryLookup | None = None


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """The constants of one layer's attention."""

    shape: AttentionShape
    window: AttentionWindow
    sinks: torch.Tensor | None  # float32 [H]
    kv: torch.Tensor  # [N, planes, G, block size, D], the layer's part of the pool
    scales: torch.Tensor | None = None  # float32 [planes, G], those of the pool


@dataclass(frozen=True)
class Backend:
    """The kernels of one implementation. `torch_attention` defines the results.

    `store(qkv [T, …], slot_mapping, update, layer)` stores keys and values and returns the queries [T, ≥ H × D], which
    `chunks(queries, out, plan, layer)` and `decode(queries, out, plan, parts, partial, layer)` read; `out`
    [T, ≥ H × output head size] may be the same memory. `split(decode_plan, window, rule)` divides contexts.
    """

    store: Callable[[torch.Tensor, torch.Tensor, HeadUpdate, AttentionLayer], torch.Tensor]
    chunks: Callable[[torch.Tensor, torch.Tensor, DevicePlan, AttentionLayer], None]
    split: Callable[[torch.Tensor, AttentionWindow, SplitRule], DecodeParts]
    decode: Callable[[torch.Tensor, torch.Tensor, DevicePlan, DecodeParts, Partial, AttentionLayer], None]


def heads_per_program(shape: AttentionShape) -> int:
    """Return the number of query heads of one KV head that one program processes."""
    return min(shape.num_heads // shape.num_kv_heads, _MOST_HEADS)


def chunk_tokens(shape: AttentionShape, dtype: torch.dtype) -> int:
    """Return the most tokens of an entry of the chunk plan. Narrow keys leave shared memory for 64 rows of tokens and
    heads; exact float32 does not use matrix units and gains nothing from more than 16."""
    num_rows = 16 if shape.head_dim > 256 or dtype == torch.float32 else 64 if shape.head_dim <= 128 else 32
    return max(num_rows // heads_per_program(shape), 1)


def max_chunk_entries(num_tokens: int, num_rows: int, size: int) -> int:
    """Return the most entries that `num_rows` chunk rows with `num_tokens` tokens in all can have."""
    return num_tokens // size + num_rows


def split_rule(shape: AttentionShape) -> SplitRule:
    """Return the rule of a model. Few KV heads need more parts to occupy all multiprocessors; wide outputs need fewer,
    because the memory for partial results grows with both."""
    is_wide = shape.output_width > 8192
    return SplitRule(64 * min(max(shape.num_kv_heads, 2), 8), 16 if is_wide else 64 if shape.num_kv_heads < 8 else 32)


def write_plans(
    chunk_plan: Ints,
    decode_plan: Ints,
    slots: Ints,
    query_starts: Ints,
    context_lens: Ints,
    num_decode_rows: int,
    size: int,
) -> None:
    """Fill a chunk plan [C, 4] and a decode plan [E, 3], see `DevicePlan`. Surplus entries become zeros.

    The first `num_decode_rows` of R rows have one token each. `size` is `chunk_tokens`. No chunk entry has tokens of
    two rows. Raises ValueError if a plan is too small.
    """
    _write(decode_plan, decode_entries(slots, query_starts, context_lens, num_decode_rows))
    _write(chunk_plan, chunk_entries(slots, query_starts, context_lens, num_decode_rows, size))


def decode_entries(slots: Ints, query_starts: Ints, context_lens: Ints, num_decode_rows: int) -> Ints:
    """Return int32 [num_decode_rows, 3]."""
    columns = (slots[:num_decode_rows], query_starts[:num_decode_rows], context_lens[:num_decode_rows])
    return np.stack(columns, 1).astype(np.int32, copy=False)


def chunk_entries(slots: Ints, query_starts: Ints, context_lens: Ints, num_decode_rows: int, size: int) -> Ints:
    """Return int32 [C, 4] of the rows after the first `num_decode_rows`."""
    num_tokens = np.diff(query_starts[num_decode_rows:])  # [chunk rows]
    num_entries = ceil_div(num_tokens, size)
    rows = np.repeat(np.arange(len(num_tokens), dtype=np.int32), num_entries)  # [C]
    offsets = segment_offsets(num_entries) * size
    plan = np.empty((len(rows), 4), np.int32)
    plan[:, _SLOT] = slots[num_decode_rows:][rows]
    plan[:, _FIRST_TOKEN] = query_starts[num_decode_rows:][rows] + offsets
    plan[:, _NUM_TOKENS] = np.minimum(num_tokens[rows] - offsets, size)
    plan[:, _FIRST_POSITION] = context_lens[num_decode_rows:][rows] - num_tokens[rows] + offsets
    return plan


def _write(plan: Ints, entries: Ints) -> None:
    if len(entries) > len(plan):
        raise ValueError(f"an attention plan of {len(plan)} entries is too small for {len(entries)}")
    plan[: len(entries)] = entries
    plan[len(entries) :] = 0
