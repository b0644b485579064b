"""Attention over the paged pool on a CPU in plain torch. Every row gathers the blocks of its attention window.

Decode rows gather together and use torch's fused attention. Prefill rows, and all rows of models with a score cap or
sinks, are computed one at a time: in float32 by fused attention, in bfloat16 or with a cap or sinks by explicit
products. oneDNN compiles a bfloat16 kernel for every distinct shape, so keys of these products are padded to a multiple
and queries are processed in tiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from engine.arrays import ceil_div
from engine.kernels.interface import AttentionShape, AttentionStep, AttentionWindow, KvPool
from engine.kernels.reference import causal_bias

_KEY_STEP = 64
_TILES = (1, 16, 64)


class CpuAttention:
    """See `engine.kernels.interface.Attention`."""

    def __init__(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> None:
        self._shape = shape
        self._block_size = pool.block_size
        dtype = self._dtype = pool.data.dtype
        self._is_plain = shape.softcap is None and not sinks
        self._tile_dtype = None if self._is_plain and dtype == torch.float32 else dtype
        self._sinks = [sink.view(shape.num_kv_heads, -1, 1, 1).to(dtype) for sink in sinks]  # L × [G, H / G, 1, 1]
        self._layers = list(pool.data.unbind(0))  # L × [slots, planes G D]
        self._blocks = [layer.view(pool.num_blocks, -1) for layer in self._layers]  # L × [N, block size × planes G D]
        self._windows, self._window_of = shape.distinct_windows(len(self._layers))
        self._num_batched = 0  # decode rows that are computed together
        self._batches: list[_DecodeBatch] = []  # for each distinct window, if there are such rows
        self._rows: list[list[_Row]] = []  # for each distinct window, all other rows
        self._slot_mapping: torch.Tensor

    def begin(self, step: AttentionStep) -> None:
        self._slot_mapping = step.slot_mapping
        self._num_batched = step.num_decode_rows if self._is_plain else 0
        if self._num_batched:
            self._batches = [
                _DecodeBatch(step, self._num_batched, self._block_size, window, self._dtype) for window in self._windows
            ]
        rows = range(self._num_batched, len(step.context_lens))
        self._rows = [
            [_Row(step, row, self._block_size, window, self._tile_dtype) for row in rows] for window in self._windows
        ]

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        self._layers[layer].index_copy_(0, self._slot_mapping, qkv[:, self._shape.query_width :])
        window = self._window_of[layer]
        num_batched = self._num_batched
        if num_batched == len(qkv):
            return self._attend_batch(layer, qkv, self._batches[window])
        parts = [self._attend_batch(layer, qkv[:num_batched], self._batches[window])] if num_batched else []
        parts += [self._attend_row(layer, qkv, row) for row in self._rows[window]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)  # [T, H ·]

    def _attend_batch(self, layer: int, qkv: torch.Tensor, batch: _DecodeBatch) -> torch.Tensor:
        """qkv [R, (H + planes G) D] of decode rows -> [R, H ·]."""
        shape, num_rows = self._shape, len(qkv)
        kv = self._blocks[layer].index_select(0, batch.block_ids).view(-1, shape.kv_width)  # [R × keys, planes G D]
        kv.index_fill_(0, batch.hidden, 0.0)  # unwritten slots may hold NaN, which a weight of 0 would not remove
        kv = kv.view(num_rows, -1, shape.num_planes, shape.num_kv_heads, shape.head_dim).permute(2, 0, 3, 1, 4)
        keys, *others = kv.unbind(0)  # 1 or 2 × [R, G, keys, D]
        values = others[0] if others else keys[..., : shape.value_dim]
        query = qkv[:, : shape.query_width].view(num_rows, shape.num_kv_heads, -1, shape.head_dim)  # [R, G, H / G, D]
        scale = shape.score_scale
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=batch.bias, scale=scale)
        return mixed.reshape(num_rows, shape.output_width)

    def _attend_row(self, layer: int, qkv: torch.Tensor, row: _Row) -> torch.Tensor:
        shape = self._shape
        rows = qkv[row.first : row.last]  # [t, (H + planes G) D]
        if row.is_fresh:
            kv = rows[:, shape.query_width :]  # [t, planes G D]: the chunk is the whole context
        else:
            kv = self._blocks[layer].index_select(0, row.block_ids).view(-1, shape.kv_width)[: row.num_keys]
        heads = (shape.num_planes, shape.num_kv_heads, shape.head_dim)
        kv = kv.unflatten(1, heads).permute(1, 2, 0, 3)  # [planes, G, context, D]
        query = rows[:, : shape.query_width].unflatten(1, (shape.num_kv_heads, -1, shape.head_dim)).permute(1, 2, 0, 3)
        if self._tile_dtype is None:
            mixed = _attend_fused(query, kv, row.bias, shape)  # [G, H / G, t, ·]
        else:
            mixed = _attend_tiled(query, kv, row.bias, shape, self._sinks[layer] if self._sinks else None)
        return mixed.permute(2, 0, 1, 3).reshape(row.last - row.first, shape.output_width)


class _DecodeBatch:
    """Indices and bias of the first `num_rows` rows, which decode, shared by all layers with one window.

    Every row has as many blocks as the row with the most; missing ones repeat a block of the row and are hidden.
    """

    def __init__(
        self, step: AttentionStep, num_rows: int, block_size: int, window: AttentionWindow, dtype: torch.dtype
    ) -> None:
        lens = step.context_lens[:num_rows]
        first_blocks = (lens - window.num_visible(lens)) // block_size
        num_blocks = int((ceil_div(lens, block_size) - first_blocks).max())
        blocks = first_blocks[:, None] + np.arange(num_blocks)  # [R, blocks]
        used = np.minimum(blocks, ((lens - 1) // block_size)[:, None])
        self.block_ids = torch.from_numpy(np.take_along_axis(step.block_tables[:num_rows], used, 1).ravel()).long()
        positions = first_blocks[:, None] * block_size + np.arange(num_blocks * block_size)  # [R, keys]
        is_hidden = (positions >= lens[:, None]) | (positions < (lens - window.num_visible(lens))[:, None])
        self.hidden = torch.from_numpy(np.flatnonzero(is_hidden))
        bias = np.where(is_hidden, np.float32("-inf"), np.float32(0))
        self.bias = torch.from_numpy(bias)[:, None, None].to(dtype)  # [R, 1, 1, keys]


class _Row:
    """One row's indices and bias, shared by all layers with one window. `tile_dtype` is None for fused attention."""

    def __init__(
        self, step: AttentionStep, row: int, block_size: int, window: AttentionWindow, tile_dtype: torch.dtype | None
    ) -> None:
        self.first, self.last = int(step.query_starts[row]), int(step.query_starts[row + 1])
        num_tokens, context_len = self.last - self.first, int(step.context_lens[row])
        self.is_fresh = num_tokens == context_len
        first_context = step.context_lens[row : row + 1] - num_tokens + 1  # [1], at the row's first token
        num_visible = num_tokens - 1 + int(window.num_visible(first_context)[0])  # by any token of the row
        first_block = 0 if self.is_fresh else (context_len - num_visible) // block_size
        self.num_keys = context_len - first_block * block_size
        last_block = ceil_div(context_len, block_size)
        self.block_ids = torch.from_numpy(step.block_tables[row, first_block:last_block]).long()
        self.bias = causal_bias(num_tokens, context_len, window, first_block * block_size)  # float32 [t, keys]
        if tile_dtype is not None:
            num_hidden, num_spare = -self.num_keys % _KEY_STEP, -num_tokens % _tile_size(num_tokens)
            bias = functional.pad(self.bias, (0, num_hidden), value=float("-inf"))
            self.bias = functional.pad(bias, (0, 0, 0, num_spare)).to(tile_dtype)  # [t + spare, keys + hidden]


def _attend_fused(query: torch.Tensor, kv: torch.Tensor, bias: torch.Tensor, shape: AttentionShape) -> torch.Tensor:
    """query [G, H / G, t, D], kv [planes, G, context, D], bias [t, context] -> [G, H / G, t, ·]."""
    heads = kv.unsqueeze(2).expand(-1, -1, query.shape[1], -1, -1)  # [planes, G, H / G, context, D]
    keys, values = heads[0], heads[-1, ..., : shape.output_head_dim]
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=shape.score_scale)


def _attend_tiled(
    query: torch.Tensor, kv: torch.Tensor, bias: torch.Tensor, shape: AttentionShape, sink: torch.Tensor | None
) -> torch.Tensor:
    """The same with `bias` padded to [t + spare, context + hidden], in products of few distinct shapes."""
    num_kv_heads, group, num_tokens, head_dim = query.shape
    num_queries, num_keys = bias.shape
    padded_kv = kv.new_zeros(len(kv), num_kv_heads, num_keys, head_dim)
    padded_kv[:, :, : kv.shape[2]].copy_(kv)
    keys, values = padded_kv[0], padded_kv[-1, ..., : shape.output_head_dim]  # [G, keys, ·]
    padded = functional.pad(query, (0, 0, 0, num_queries - num_tokens))  # [G, H / G, t + spare, D]
    tiles, tile = [], _tile_size(num_tokens)
    for part, part_bias in zip(padded.split(tile, 2), bias.split(tile), strict=True):
        flat = part.reshape(num_kv_heads, group * tile, head_dim)
        scores = torch.bmm(flat, keys.transpose(1, 2)).mul_(shape.score_scale)  # [G, H / G × tile, keys]
        weights = _softmax(scores.view(num_kv_heads, group, tile, num_keys), part_bias, shape.softcap, sink)
        mixed = torch.bmm(weights.reshape(num_kv_heads, group * tile, num_keys), values)
        tiles.append(mixed.view(num_kv_heads, group, tile, -1))
    return torch.cat(tiles, 2)[:, :, :num_tokens]


def _softmax(
    scores: torch.Tensor, bias: torch.Tensor, softcap: float | None, sink: torch.Tensor | None
) -> torch.Tensor:
    """Return the weights [..., keys] of scaled scores, which are overwritten.

    `bias` is -inf for hidden keys; `sink` [..., 1] is one more score whose weight is dropped.
    """
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    scores.add_(bias)
    if sink is None:
        return torch.softmax(scores, -1)
    sinks = sink.expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat((scores, sinks), -1), -1)[..., :-1]


def _tile_size(num_tokens: int) -> int:
    """Return how many queries one product processes."""
    return next(tile for tile in _TILES if num_tokens <= tile or tile == _TILES[-1])
