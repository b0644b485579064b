"""The kernels as they run on a CPU: the same laws as `reference.py` with few, cheap operators.

At these sizes a step costs what its operator calls cost (1 to 15 µs each), so each kernel is the shortest chain found
by measurement; `bench/LOG.md` has the figures. Decode rows attend in a dense workspace, prefill rows one by one.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from engine.kernels.cpu_linear import bind_linear
from engine.kernels.decode_workspace import DecodeWorkspace
from engine.kernels.interface import Attention, AttentionShape, AttentionStep, KvPool, Operator
from engine.kernels.reference import causal_bias

_MAX_SCORES = 1 << 21  # elements of one score matrix in prefill: stays in the cache


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
            _PrefillRow(step, row, self._block_size, self._shape)
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
        num_kv_heads, head_dim = shape.num_kv_heads, shape.head_dim
        rows = qkv[row.first : row.last]  # [t, (H + 2 G) D]
        if row.is_fresh:
            kv = rows[:, shape.query_width :]  # [t, 2 G D]: the chunk is the whole context
        else:
            kv = self._blocks[layer].index_select(0, row.block_ids).view(-1, shape.kv_width)[: row.num_keys]
        kv = kv.unflatten(1, (2, num_kv_heads, head_dim)).permute(1, 2, 0, 3)  # [2, G, context, D]
        query = rows[:, : shape.query_width].unflatten(1, (num_kv_heads, -1, head_dim)).permute(1, 2, 0, 3)
        # query [G, H / G, t, D]
        if qkv.dtype == torch.float32:
            keys, values = kv.unsqueeze(2).expand(-1, -1, query.shape[1], -1, -1)  # 2 × [G, H / G, context, D]
            mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=row.bias)  # [G, H / G, t, D]
        else:
            keys, values = kv.contiguous()  # 2 × [G, context, D]
            mixed = torch.cat([_attend_dense(q, keys, values, b) for q, b in row.tiles(query)], 2)
        return mixed.permute(2, 0, 1, 3).reshape(row.last - row.first, shape.query_width)


class _PrefillRow:
    """What one row needs in every layer, prepared once a step."""

    def __init__(self, step: AttentionStep, row: int, block_size: int, shape: AttentionShape) -> None:
        self.first, self.last = int(step.query_starts[row]), int(step.query_starts[row + 1])
        num_tokens, context_len = self.last - self.first, int(step.context_lens[row])
        self.is_fresh = num_tokens == context_len
        reach = context_len if shape.window is None else min(context_len, num_tokens + shape.window - 1)
        first_block = 0 if self.is_fresh else (context_len - reach) // block_size
        self.num_keys = context_len - first_block * block_size
        last_block = -(-context_len // block_size)
        self.block_ids = torch.from_numpy(step.block_tables[row, first_block:last_block]).long()
        self.bias = causal_bias(num_tokens, self.num_keys, shape.window)  # float32 [t, keys]
        self._tile = max(16, _MAX_SCORES // (shape.num_heads * self.num_keys))  # queries at a time

    def tiles(self, query: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """query [G, H / G, t, D] in pieces whose score matrix stays small, each with its bias."""
        tile = self._tile
        return list(zip(query.split(tile, 2), self.bias.to(query.dtype).split(tile), strict=True))


def _attend_dense(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """query [G, H / G, t, D], keys and values [G, context, D], bias [t, context] -> [G, H / G, t, D]."""
    num_kv_heads, group, num_tokens, head_dim = query.shape
    flat = query.reshape(num_kv_heads, group * num_tokens, head_dim)
    scores = torch.bmm(flat, keys.transpose(1, 2)).mul_(head_dim**-0.5)  # [G, H / G × t, context]
    scores = scores.view(num_kv_heads, group, num_tokens, -1).add_(bias)
    weights = torch.softmax(scores, -1).view(num_kv_heads, group * num_tokens, -1)
    return torch.bmm(weights, values).view(query.shape)
