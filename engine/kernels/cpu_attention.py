"""Attention over the paged pool on a CPU: decode rows in a dense workspace, prefill rows one by one. Guessed
tokens are decode rows where those may be several of a sequence, and have dense contexts of their own elsewhere.

Plain float32 prefill goes through torch's fused attention; bfloat16, capped scores and sinks through explicit products.
In bfloat16 a kernel is compiled for every shape met, so keys are padded to a multiple and queries taken in tiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from engine.arrays import ceil_div
from engine.kernels.decode_workspace import DecodeWorkspace
from engine.kernels.dense_contexts import DenseContexts
from engine.kernels.interface import AttentionShape, AttentionStep, KvPool, Reach
from engine.kernels.reference import causal_bias
from engine.kernels.score_weights import weigh

_KEY_STEP = 64
_TILES = (1, 16, 64)


class CpuAttention:
    """Attention over the pool. Decode rows that fit live in the workspace; all others gather their context."""

    def __init__(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> None:
        self._shape = shape
        self._block_size = pool.block_size
        self._is_fused = pool.data.dtype == torch.float32 and shape.softcap is None and not sinks
        self._dtype = pool.data.dtype
        # L × [G, H / G, 1, 1]
        self._sinks = [sink.view(shape.num_kv_heads, -1, 1, 1).to(self._dtype) for sink in sinks]
        self._layers = list(pool.data.unbind(0))  # L × [slots, planes G D]
        self._last_layer = len(self._layers) - 1
        self._blocks = [layer.view(pool.num_blocks, -1) for layer in self._layers]  # L × [N, block size × planes G D]
        self._reaches, self._reach_of = shape.distinct_reaches(len(self._layers))
        self._workspace = DecodeWorkspace(pool, shape, sinks, max_bytes=pool.data.nbytes)
        self._contexts = DenseContexts(pool, shape, sinks, max_bytes=pool.data.nbytes)
        self._is_guessed = False
        self._num_dense = 0
        self._rows: list[list[_PrefillRow]] = []  # of each distinct reach
        self._slot_mapping: torch.Tensor

    def begin(self, step: AttentionStep) -> None:
        self._slot_mapping = step.slot_mapping
        self._is_guessed = step.has_drafts and self._contexts.begin(step)
        if self._is_guessed:
            return
        self._contexts.pass_by(step)
        num_decode = step.num_decode_rows
        self._num_dense = self._workspace.arrange(
            step.sequence_ids[:num_decode], step.context_lens[:num_decode], step.block_tables[:num_decode]
        )
        rows = range(self._num_dense, len(step.context_lens))
        tile_dtype = None if self._is_fused else self._dtype
        self._rows = [
            [_PrefillRow(step, row, self._block_size, reach, tile_dtype) for row in rows] for reach in self._reaches
        ]

    def wipe(self) -> None:
        self._workspace.wipe()
        self._contexts.wipe()

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        if self._is_guessed:
            return self._contexts.attend(layer, qkv)
        rows = self._rows[self._reach_of[layer]]
        if not rows:
            return self._attend_dense(layer, qkv)
        num_dense, width = self._num_dense, self._shape.query_width
        parts = [self._attend_dense(layer, qkv[:num_dense])] if num_dense else []
        self._layers[layer].index_copy_(0, self._slot_mapping[num_dense:], qkv[num_dense:, width:])
        parts += [self._attend_row(layer, qkv, row) for row in rows]  # each [row's tokens, H ·]
        return parts[0] if len(parts) == 1 else torch.cat(parts)  # [T, H ·]

    def _attend_dense(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        """Of the rows in the workspace, which are all of `qkv`."""
        mixed = self._workspace.attend(layer, qkv)  # [dense rows, H ·]
        if layer == self._last_layer:
            self._workspace.store(self._slot_mapping[: self._num_dense])
        return mixed

    def _attend_row(self, layer: int, qkv: torch.Tensor, row: _PrefillRow) -> torch.Tensor:
        shape = self._shape
        rows = qkv[row.first : row.last]  # [t, (H + planes G) D]
        if row.is_fresh:
            kv = rows[:, shape.query_width :]  # [t, planes G D]: the chunk is the whole context
        else:
            kv = self._blocks[layer].index_select(0, row.block_ids).view(-1, shape.kv_width)[: row.num_keys]
        heads = (shape.num_planes, shape.num_kv_heads, shape.head_dim)
        kv = kv.unflatten(1, heads).permute(1, 2, 0, 3)  # [planes, G, context, D]
        query = rows[:, : shape.query_width].unflatten(1, (shape.num_kv_heads, -1, shape.head_dim)).permute(1, 2, 0, 3)
        if self._is_fused:
            mixed = _attend_fused(query, kv, row.bias, shape)  # [G, H / G, t, ·]
        else:
            mixed = _attend_tiled(query, kv, row.bias, shape, self._sinks[layer] if self._sinks else None)
        return mixed.permute(2, 0, 1, 3).reshape(row.last - row.first, shape.mixed_width)


class _PrefillRow:
    """What one row needs in every layer of one reach, prepared once a step. `tile_dtype` None: for fused attention."""

    def __init__(
        self, step: AttentionStep, row: int, block_size: int, reach: Reach, tile_dtype: torch.dtype | None
    ) -> None:
        self.first, self.last = int(step.query_starts[row]), int(step.query_starts[row + 1])
        num_tokens, context_len = self.last - self.first, int(step.context_lens[row])
        self.is_fresh = num_tokens == context_len
        first_query = step.context_lens[row : row + 1] - num_tokens + 1  # its context, [1]
        num_seen = num_tokens - 1 + int(reach.num_seen(first_query)[0])  # from the first query's farthest key on
        first_block = 0 if self.is_fresh else (context_len - num_seen) // block_size
        self.num_keys = context_len - first_block * block_size
        last_block = ceil_div(context_len, block_size)
        self.block_ids = torch.from_numpy(step.block_tables[row, first_block:last_block]).long()
        self.bias = causal_bias(num_tokens, context_len, reach, first_block * block_size)  # float32 [t, keys]
        if tile_dtype is not None:
            num_hidden, num_spare = -self.num_keys % _KEY_STEP, -num_tokens % _tile_of(num_tokens)
            bias = functional.pad(self.bias, (0, num_hidden), value=float("-inf"))
            self.bias = functional.pad(bias, (0, 0, 0, num_spare)).to(tile_dtype)  # [t and spare, keys and hidden]


def _attend_fused(query: torch.Tensor, kv: torch.Tensor, bias: torch.Tensor, shape: AttentionShape) -> torch.Tensor:
    """query [G, H / G, t, D], kv [planes, G, context, D], bias [t, context] -> [G, H / G, t, ·]."""
    heads = kv.unsqueeze(2).expand(-1, -1, query.shape[1], -1, -1)  # [planes, G, H / G, context, D]
    keys, values = heads[0], heads[-1]
    if shape.value_dim is not None:
        values = values[..., : shape.value_dim]
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=shape.score_scale)


def _attend_tiled(
    query: torch.Tensor, kv: torch.Tensor, bias: torch.Tensor, shape: AttentionShape, sink: torch.Tensor | None
) -> torch.Tensor:
    """The same with `bias` padded to [t and spare, context and hidden], in products of few distinct shapes."""
    num_kv_heads, group, num_tokens, head_dim = query.shape
    num_queries, num_keys = bias.shape
    padded_kv = kv.new_zeros(len(kv), num_kv_heads, num_keys, head_dim)
    padded_kv[:, :, : kv.shape[2]].copy_(kv)
    keys, values = padded_kv[0], padded_kv[-1, ..., : shape.mixed_head_dim]  # [G, keys, ·]
    padded = functional.pad(query, (0, 0, 0, num_queries - num_tokens))  # [G, H / G, t and spare, D]
    tiles, tile = [], _tile_of(num_tokens)
    for part, part_bias in zip(padded.split(tile, 2), bias.split(tile), strict=True):
        flat = part.reshape(num_kv_heads, group * tile, head_dim)
        scores = torch.bmm(flat, keys.transpose(1, 2)).mul_(shape.score_scale)  # [G, H / G × tile, keys]
        weights = weigh(scores.view(num_kv_heads, group, tile, num_keys), part_bias, shape.softcap, sink)
        mixed = torch.bmm(weights.reshape(num_kv_heads, group * tile, num_keys), values)
        tiles.append(mixed.view(num_kv_heads, group, tile, -1))
    return torch.cat(tiles, 2)[:, :, :num_tokens]


def _tile_of(num_tokens: int) -> int:
    """Queries in one product."""
    return next(tile for tile in _TILES if num_tokens <= tile or tile == _TILES[-1])
