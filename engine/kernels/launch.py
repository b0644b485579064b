"""Arguments of a paged attention launch: a layer's constants, and the step's tokens in blocks of one row each.

The host computes the blocks for any kernel.

Letters: T tokens, R rows, H query heads, D head size, B blocks of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.arrays import ceil_div, segment_offsets
from engine.kernels.interface import AttentionShape, AttentionWindow

_MOST_HEADS = 16  # query heads of one KV head per program
_ROW, _FIRST_TOKEN, _NUM_TOKENS, _FIRST_POSITION = range(4)


@dataclass(frozen=True, eq=False)
class StepBlocks:
    """A step's arguments on the device. A block has up to `tokens_per_block` tokens of one row."""

    plan: torch.Tensor  # int32 [B, 4]: row, first token in T, number of tokens, position of the first
    block_tables: torch.Tensor  # int32 [R, max blocks]
    tokens_per_block: int


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """The constants of one layer's attention."""

    shape: AttentionShape
    window: AttentionWindow
    sinks: torch.Tensor | None  # float32 [H]
    block_size: int  # block size of the pool


# An attention kernel: (qkv [T, …], kv [slots, …], blocks, layer) -> [T, H × output head size]. Queries are the first
# H × D numbers of qkv; keys and values are read from the layer's part of the pool, `kv`.
Launch = Callable[[torch.Tensor, torch.Tensor, StepBlocks, AttentionLayer], torch.Tensor]


def heads_per_program(shape: AttentionShape) -> int:
    """Return the number of query heads of one KV head that one program processes."""
    return min(shape.num_heads // shape.num_kv_heads, _MOST_HEADS)


def tokens_per_block(shape: AttentionShape, dtype: torch.dtype, *, is_decode: bool) -> int:
    """Return the tokens per block. Matrix units take at least 16 rows; narrow keys leave shared memory for more. Exact
    float32 does not use matrix units and gains nothing from more."""
    is_small = is_decode or shape.head_dim > 256 or dtype == torch.float32
    num_rows = 16 if is_small else 64 if shape.head_dim <= 128 else 32
    return max(num_rows // heads_per_program(shape), 1)


def plan_blocks(query_starts: NDArray[np.int32], context_lens: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """Return [B, 4], see `StepBlocks`. No block has tokens of two rows."""
    num_tokens = np.diff(query_starts)  # [R]
    num_blocks = ceil_div(num_tokens, size)
    rows = np.repeat(np.arange(len(num_tokens), dtype=np.int32), num_blocks)  # [B]
    offsets = segment_offsets(num_blocks) * size
    plan = np.empty((len(rows), 4), np.int32)
    plan[:, _ROW] = rows
    plan[:, _FIRST_TOKEN] = query_starts[rows] + offsets
    plan[:, _NUM_TOKENS] = np.minimum(num_tokens[rows] - offsets, size)
    plan[:, _FIRST_POSITION] = context_lens[rows] - num_tokens[rows] + offsets
    return plan
