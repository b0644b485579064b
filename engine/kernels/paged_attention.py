"""Attention on a device over the paged pool: one launch per layer, for prefill chunks, decode rows and both in one
step.

The host divides the step's tokens into blocks of one row each (`launch.py`); the kernel of a block reads keys and
values in place. This module has the host part and the kernel's reference in torch; `triton_attention.py` has the
kernel.

Letters: T tokens, R rows, H query heads, G KV heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.kernels.interface import AttentionShape, AttentionStep, KvPool
from engine.kernels.launch import AttentionLayer, Launch, StepBlocks, plan_blocks, tokens_per_block
from engine.kernels.reference import attend_one
from engine.kernels.upload import Upload


class PagedAttention:
    """See `engine.kernels.interface.Attention`."""

    def __init__(
        self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = (), launch: Launch | None = None
    ) -> None:
        self._pool, self._shape = pool, shape
        self._launch = launch or _launch_for(pool.data.device)
        self._upload = Upload(pool.data.device)
        windows, indices = shape.distinct_windows(pool.num_layers)
        self._layers = [
            AttentionLayer(shape, windows[index], sinks[number] if sinks else None, pool.block_size)
            for number, index in enumerate(indices)
        ]
        self._slots: torch.Tensor
        self._blocks: StepBlocks

    def begin(self, step: AttentionStep) -> None:
        self._slots = step.slot_mapping
        is_decode = step.num_decode_rows == len(step.context_lens)
        size = tokens_per_block(self._shape, self._pool.data.dtype, is_decode=is_decode)
        plan, tables = self._upload.move((plan_blocks(step.query_starts, step.context_lens, size), step.block_tables))
        self._blocks = StepBlocks(plan, tables, size)

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        kv = self._pool.data[layer]  # [slots, planes × G × D]
        kv.index_copy_(0, self._slots, qkv[:, self._shape.query_width :])
        return self._launch(qkv, kv, self._blocks, self._layers[layer])


def attend_slowly(qkv: torch.Tensor, kv: torch.Tensor, blocks: StepBlocks, layer: AttentionLayer) -> torch.Tensor:
    """Compute a launch in plain torch, one block after the other. This is the kernel's definition; see `Launch`."""
    shape, block_size = layer.shape, layer.block_size
    query = qkv[:, : shape.query_width].unflatten(1, (shape.num_heads, shape.head_dim))  # [T, H, D]
    out = qkv.new_empty(len(qkv), shape.output_width)
    for row, first, num_tokens, first_position in blocks.plan.tolist():
        positions = torch.arange(first_position + num_tokens, device=qkv.device)  # [context]
        block_ids = blocks.block_tables[row].long().index_select(0, positions // block_size)
        seen = kv.index_select(0, block_ids * block_size + positions % block_size)
        seen = seen.unflatten(1, (shape.num_planes, shape.num_kv_heads, shape.head_dim))
        keys, values = seen[:, 0], seen[:, -1, :, : shape.output_head_dim]  # [context, G, ·]
        last = first + num_tokens
        out[first:last] = attend_one(query[first:last], keys, values, shape, layer.window, layer.sinks)
    return out


def _launch_for(device: torch.device) -> Launch:
    if device.type != "cuda":
        return attend_slowly
    from engine.kernels.triton_attention import attend  # imported late, because Triton is optional

    return attend
