"""The kernels as they run on a CPU: the same laws as `reference.py` with few, cheap operators.

At these sizes a step costs what its operator calls cost (1 to 15 µs each, twice that once weights have passed through
the cache), so each kernel is the shortest chain found by measurement. Decode rows attend in a dense workspace, prefill
rows one by one.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from engine.kernels.cpu_linear import bind_linear
from engine.kernels.decode_workspace import DecodeWorkspace
from engine.kernels.interface import Attention, AttentionShape, AttentionStep, KvPool, Operator
from engine.kernels.reference import causal_bias

# In bfloat16 a kernel is compiled for every shape met: keys are padded to a multiple, queries taken in tiles.
_KEY_STEP = 64
_TILES = (1, 16, 64)


class CpuKernels:
    """See `engine.kernels.interface.Kernels` for the law of each."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        return bind_linear(weight, bias)

    def rms_norm(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> Operator:
        """With c = √C: x / √(mean x² + ε) = x · c / hypot(‖x‖, c √ε), four operators instead of torch's eight."""
        root = math.sqrt(weight.numel())
        floor = torch.tensor(root * math.sqrt(eps))
        scaled_weight = weight.float() * root  # [C]
        length = torch.linalg.vector_norm

        def norm_float32(x: torch.Tensor) -> torch.Tensor:
            return torch.div(x, length(x, 2, -1, True).hypot_(floor)).mul_(scaled_weight)  # [T, C]

        def norm_cast(x: torch.Tensor) -> torch.Tensor:
            y = torch.div(x, length(x, 2, -1, True).hypot_(floor))  # float32 [T, C]
            return torch.mul(y, scaled_weight, out=torch.empty_like(y, dtype=dtype))  # [T, C]

        return norm_float32 if dtype == torch.float32 else norm_cast

    def rotate(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int) -> None:
        half = cos.shape[-1]
        heads = qkv[:, : num_heads * 2 * half].view(-1, num_heads, 2, half)  # [T, heads, 2, D/2]
        torch.addcmul(heads * cos, heads.flip(2), sin, out=heads)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)  # 2 × [T, I]
        return functional.silu(gate).mul_(up)

    def attention(self, pool: KvPool, shape: AttentionShape) -> Attention:
        return CpuAttention(pool, shape)


class CpuAttention:
    """Attention over the pool. Decode rows that fit live in the workspace; all others gather their context."""

    def __init__(self, pool: KvPool, shape: AttentionShape) -> None:
        self._shape = shape
        self._block_size = pool.block_size
        self._is_tiled = pool.data.dtype != torch.float32
        self._layers = list(pool.data.unbind(0))  # L × [slots, 2 G D]
        self._blocks = [layer.view(pool.num_blocks, -1) for layer in self._layers]  # L × [N, block size × 2 G D]
        self._workspace = DecodeWorkspace(pool, shape, max_bytes=pool.data.nbytes)
        self._num_dense = 0
        self._rows: list[_PrefillRow] = []
        self._slot_mapping: torch.Tensor

    def begin(self, step: AttentionStep) -> None:
        self._slot_mapping = step.slot_mapping
        num_decode = step.num_decode_rows
        self._num_dense = self._workspace.arrange(
            step.sequence_ids[:num_decode], step.context_lens[:num_decode], step.block_tables[:num_decode]
        )
        self._rows = [
            _PrefillRow(step, row, self._block_size, self._shape, self._is_tiled)
            for row in range(self._num_dense, len(step.context_lens))
        ]

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        num_dense, parts = self._num_dense, []
        if num_dense:
            parts.append(self._workspace.attend(layer, qkv[:num_dense] if self._rows else qkv))  # [dense rows, H D]
            if layer + 1 == len(self._layers):
                self._workspace.store(self._slot_mapping[:num_dense])
        if self._rows:
            width = self._shape.query_width
            self._layers[layer].index_copy_(0, self._slot_mapping[num_dense:], qkv[num_dense:, width:])
            parts += [self._attend_row(layer, qkv, row) for row in self._rows]  # each [row's tokens, H D]
        return parts[0] if len(parts) == 1 else torch.cat(parts)  # [T, H D]

    def _attend_row(self, layer: int, qkv: torch.Tensor, row: _PrefillRow) -> torch.Tensor:
        shape = self._shape
        rows = qkv[row.first : row.last]  # [t, (H + 2 G) D]
        if row.is_fresh:
            kv = rows[:, shape.query_width :]  # [t, 2 G D]: the chunk is the whole context
        else:
            kv = self._blocks[layer].index_select(0, row.block_ids).view(-1, shape.kv_width)[: row.num_keys]
        kv = kv.unflatten(1, (2, shape.num_kv_heads, shape.head_dim)).permute(1, 2, 0, 3)  # [2, G, context, D]
        query = rows[:, : shape.query_width].unflatten(1, (shape.num_kv_heads, -1, shape.head_dim)).permute(1, 2, 0, 3)
        attend = _attend_float32 if qkv.dtype == torch.float32 else _attend_tiled
        mixed = attend(query, kv, row.bias)  # [G, H / G, t, D]
        return mixed.permute(2, 0, 1, 3).reshape(row.last - row.first, shape.query_width)


class _PrefillRow:
    """What one row needs in every layer, prepared once a step."""

    def __init__(self, step: AttentionStep, row: int, block_size: int, shape: AttentionShape, is_tiled: bool) -> None:
        self.first, self.last = int(step.query_starts[row]), int(step.query_starts[row + 1])
        num_tokens, context_len = self.last - self.first, int(step.context_lens[row])
        self.is_fresh = num_tokens == context_len
        reach = context_len if shape.window is None else min(context_len, num_tokens + shape.window - 1)
        first_block = 0 if self.is_fresh else (context_len - reach) // block_size
        self.num_keys = context_len - first_block * block_size
        last_block = -(-context_len // block_size)
        self.block_ids = torch.from_numpy(step.block_tables[row, first_block:last_block]).long()
        self.bias = causal_bias(num_tokens, self.num_keys, shape.window)  # float32 [t, keys]
        if is_tiled:
            num_hidden, num_spare = -self.num_keys % _KEY_STEP, -num_tokens % _tile_of(num_tokens)
            bias = functional.pad(self.bias, (0, num_hidden), value=float("-inf"))
            self.bias = functional.pad(bias, (0, 0, 0, num_spare)).bfloat16()  # [t and spare, keys and hidden]


def _attend_float32(query: torch.Tensor, kv: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """query [G, H / G, t, D], kv [2, G, context, D], bias [t, context] -> [G, H / G, t, D]."""
    keys, values = kv.unsqueeze(2).expand(-1, -1, query.shape[1], -1, -1)  # 2 × [G, H / G, context, D]
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=bias)


def _attend_tiled(query: torch.Tensor, kv: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The same with `bias` padded to [t and spare, context and hidden], in products of few distinct shapes."""
    num_kv_heads, group, num_tokens, head_dim = query.shape
    num_queries, num_keys = bias.shape
    keys, values = kv.new_zeros(2, num_kv_heads, num_keys, head_dim)  # 2 × [G, keys, D]
    keys[:, : kv.shape[2]].copy_(kv[0])
    values[:, : kv.shape[2]].copy_(kv[1])
    padded = functional.pad(query, (0, 0, 0, num_queries - num_tokens))  # [G, H / G, t and spare, D]
    tiles, tile = [], _tile_of(num_tokens)
    for part, part_bias in zip(padded.split(tile, 2), bias.split(tile), strict=True):
        flat = part.reshape(num_kv_heads, group * tile, head_dim)
        scores = torch.bmm(flat, keys.transpose(1, 2)).mul_(head_dim**-0.5)  # [G, H / G × tile, keys]
        weights = torch.softmax(scores.view(num_kv_heads, group, tile, num_keys).add_(part_bias), -1)
        mixed = torch.bmm(weights.view(num_kv_heads, group * tile, num_keys), values)
        tiles.append(mixed.view(num_kv_heads, group, tile, head_dim))
    return torch.cat(tiles, 2)[:, :, :num_tokens]


def _tile_of(num_tokens: int) -> int:
    """Queries in one product."""
    return next(tile for tile in _TILES if num_tokens <= tile or tile == _TILES[-1])
