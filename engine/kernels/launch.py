"""What a launch of paged attention is told: a layer's tables, and the step's tokens in blocks of one row each.

The host cuts the blocks, for whichever kernel answers for them. Knows nothing of how one does.

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

_MOST_HEADS = 16  # of one KV head that one program answers for
_ROW, _FIRST_TOKEN, _NUM_TOKENS, _FIRST_POSITION = range(4)


@dataclass(frozen=True, eq=False)
class StepBlocks:
    """What a launch is told of the step, on the device. A block is up to `tokens_per_block` tokens of one row."""

    plan: torch.Tensor  # int32 [B, 4]: row, first token among the T, how many, and the first one's position
    block_tables: torch.Tensor  # int32 [R, max blocks]
    tokens_per_block: int


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """What never changes about one layer's attention."""

    shape: AttentionShape
    window: AttentionWindow
    sinks: torch.Tensor | None  # float32 [H]
    block_size: int  # of the pool


# What attends: queries are the first H × D numbers of qkv [T, …], keys and values those of the pool, `kv` [slots, …] of
# the layer. Returns [T, H × mixed head size].
Launch = Callable[[torch.Tensor, torch.Tensor, StepBlocks, AttentionLayer], torch.Tensor]


def heads_per_program(shape: AttentionShape) -> int:
    """Query heads of one KV head that one program takes, side by side."""
    return min(shape.num_heads // shape.num_kv_heads, _MOST_HEADS)


def tokens_per_block(shape: AttentionShape, dtype: torch.dtype, *, is_decode: bool) -> int:
    """Matrix units take 16 rows at least; more while keys are narrow enough for what is kept beside them. Exact float32
    goes past them, and gains nothing by more."""
    is_small = is_decode or shape.head_dim > 256 or dtype == torch.float32
    num_rows = 16 if is_small else 64 if shape.head_dim <= 128 else 32
    return max(num_rows // heads_per_program(shape), 1)


def plan_blocks(query_starts: NDArray[np.int32], context_lens: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """[B, 4], see `StepBlocks`. No block has tokens of two rows."""
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
