"""Attention on a device over the paged pool: one launch a layer, for prefill chunks, decode rows and both in one step.

The host cuts the step's tokens into blocks of one row each and says which; the kernel that answers for a block reads
keys and values where they lie. This file is the host's part and the kernel's slow twin, which runs wherever torch does;
`triton_attention.py` is the kernel.

Letters: T tokens, R rows, H query heads, G KV heads, D head size, B blocks of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.interface import AttentionShape, AttentionStep, KvPool, Reach
from engine.kernels.reference import attend_one
from engine.kernels.upload import Upload

_MOST_HEADS = 16  # of one KV head that one program answers for
_ROW, _FIRST_TOKEN, _NUM_TOKENS, _FIRST_POSITION = range(4)


@dataclass(frozen=True, eq=False)
class StepBlocks:
    """What a launch is told of the step, on the device. A block is up to `tokens_per_block` tokens of one row."""

    plan: torch.Tensor  # int32 [B, 4]: row, first token among the T, how many, and the first one's position
    block_tables: torch.Tensor  # int32 [R, max blocks]
    tokens_per_block: int


class Launch(Protocol):
    """What attends: queries are the first H × D numbers of qkv [T, …], keys and values the pool's, of one `layer`."""

    def __call__(
        self,
        qkv: torch.Tensor,
        layer: torch.Tensor,
        blocks: StepBlocks,
        shape: AttentionShape,
        reach: Reach,
        sinks: torch.Tensor | None,
        block_size: int,
    ) -> torch.Tensor:
        """[T, H × mixed head size]"""


class PagedAttention:
    """See `engine.kernels.interface.Attention`."""

    def __init__(
        self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = (), launch: Launch | None = None
    ) -> None:
        self._pool, self._shape, self._sinks = pool, shape, sinks
        self._launch = launch or _launch_for(pool.data.device)
        self._upload = Upload(pool.data.device)
        reaches, indices = shape.distinct_reaches(pool.num_layers)
        self._reaches = [reaches[index] for index in indices]
        self._slots: torch.Tensor
        self._blocks: StepBlocks

    def begin(self, step: AttentionStep) -> None:
        self._slots = step.slot_mapping
        is_decode = step.num_decode_rows == len(step.context_lens)
        size = tokens_per_block(self._shape, self._pool.data.dtype, is_decode=is_decode)
        plan, tables = self._upload.move((plan_blocks(step.query_starts, step.context_lens, size), step.block_tables))
        self._blocks = StepBlocks(plan, tables, size)

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        data = self._pool.data[layer]  # [slots, planes × G × D]
        data.index_copy_(0, self._slots, qkv[:, self._shape.query_width :])
        sinks = self._sinks[layer] if self._sinks else None
        return self._launch(qkv, data, self._blocks, self._shape, self._reaches[layer], sinks, self._pool.block_size)

    def wipe(self) -> None:
        """It has nothing beside the pool."""


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
    num_blocks = -(-num_tokens // size)
    rows = np.repeat(np.arange(len(num_tokens), dtype=np.int32), num_blocks)  # [B]
    within = np.arange(len(rows)) - np.repeat(np.cumsum(num_blocks) - num_blocks, num_blocks)  # which of its row
    offsets = within * size
    plan = np.empty((len(rows), 4), np.int32)
    plan[:, _ROW] = rows
    plan[:, _FIRST_TOKEN] = query_starts[rows] + offsets
    plan[:, _NUM_TOKENS] = np.minimum(num_tokens[rows] - offsets, size)
    plan[:, _FIRST_POSITION] = context_lens[rows] - num_tokens[rows] + offsets
    return plan


def attend_slowly(
    qkv: torch.Tensor,
    layer: torch.Tensor,
    blocks: StepBlocks,
    shape: AttentionShape,
    reach: Reach,
    sinks: torch.Tensor | None,
    block_size: int,
) -> torch.Tensor:
    """The kernel's law in plain torch, a block after the other. See `Launch`."""
    query = qkv[:, : shape.query_width].unflatten(1, (shape.num_heads, shape.head_dim))  # [T, H, D]
    out = qkv.new_empty(len(qkv), shape.mixed_width)
    for row, first, num_tokens, first_position in blocks.plan.tolist():
        positions = torch.arange(first_position + num_tokens, device=qkv.device)  # [context]
        block_ids = blocks.block_tables[row].long().index_select(0, positions // block_size)
        kv = layer.index_select(0, block_ids * block_size + positions % block_size)
        kv = kv.unflatten(1, (shape.num_planes, shape.num_kv_heads, shape.head_dim))
        keys, values = kv[:, 0], kv[:, -1, :, : shape.mixed_head_dim]  # [context, G, ·]
        last = first + num_tokens
        out[first:last] = attend_one(query[first:last], keys, values, shape, reach, sinks)
    return out


def _launch_for(device: torch.device) -> Launch:
    if device.type != "cuda":
        return attend_slowly
    from engine.kernels.triton_attention import attend  # not everywhere is there a Triton, nor a need for it

    return attend
