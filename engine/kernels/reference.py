"""Every kernel in plain torch, one sequence at a time: the specification that faster twins are compared with.

Written to be read. Knows nothing of speed.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from engine.kernels.interface import Attention, AttentionShape, AttentionStep, KvPool, Operator


class ReferenceKernels:
    """See `engine.kernels.interface.Kernels` for the law of each."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        return lambda x: functional.linear(x, weight, bias)

    def rms_norm(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> Operator:
        def norm(x: torch.Tensor) -> torch.Tensor:
            scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)  # [T, 1]
            return (x * scale * weight.float()).to(dtype)  # [T, C]

        return norm

    def rotate(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int) -> None:
        half = cos.shape[-1]
        heads = qkv[:, : num_heads * 2 * half].unflatten(1, (num_heads, 2, half))  # [T, heads, 2, D/2], a view
        swapped = heads.flip(2)  # [T, heads, 2, D/2]: (b, a)
        heads.copy_(heads * cos + swapped * sin)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)  # 2 × [T, I]
        return functional.silu(gate) * up

    def attention(self, pool: KvPool, shape: AttentionShape) -> Attention:
        return ReferenceAttention(pool, shape)


class ReferenceAttention:
    """Store, gather each sequence's whole context from its blocks, softmax in float32."""

    def __init__(self, pool: KvPool, shape: AttentionShape) -> None:
        self._pool = pool
        self._shape = shape
        self._step: AttentionStep

    def begin(self, step: AttentionStep) -> None:
        self._step = step

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        shape, step, pool = self._shape, self._step, self._pool.data[layer]  # pool [slots, 2 G D]
        pool.index_copy_(0, step.slot_mapping, qkv[:, shape.query_width :])
        query = qkv[:, : shape.query_width].unflatten(1, (shape.num_heads, shape.head_dim))  # [T, H, D]
        rows = []
        for row, context_len in enumerate(step.context_lens.tolist()):
            first, last = step.query_starts[row : row + 2].tolist()
            positions = torch.arange(context_len)  # [context]
            block_ids = torch.from_numpy(step.block_tables[row]).long()[positions // self._pool.block_size]
            slots = block_ids * self._pool.block_size + positions % self._pool.block_size  # [context]
            kv = pool[slots].unflatten(1, (2, shape.num_kv_heads, shape.head_dim))  # [context, 2, G, D]
            rows.append(attend_one(query[first:last], kv[:, 0], kv[:, 1], shape.window))
        return torch.cat(rows)  # [T, H D]


def attend_one(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None = None
) -> torch.Tensor:
    """query [T, H, D] are the last T of the positions whose keys and values are [context, G, D] -> [T, H × D]."""
    num_tokens, num_heads, head_dim = query.shape
    context_len, num_kv_heads, _ = keys.shape
    keys = keys.repeat_interleave(num_heads // num_kv_heads, dim=1)  # [context, H, D]
    values = values.repeat_interleave(num_heads // num_kv_heads, dim=1)  # [context, H, D]
    scores = torch.einsum("thd,chd->htc", query.float(), keys.float()) * head_dim**-0.5  # [H, T, context]
    scores += causal_bias(num_tokens, context_len, window)
    mixed = torch.einsum("htc,chd->thd", scores.softmax(-1), values.float())  # [T, H, D]
    return mixed.to(query.dtype).flatten(1)


def causal_bias(num_tokens: int, context_len: int, window: int | None = None) -> torch.Tensor:
    """float32 [T, context]: 0 where a query may look, -inf where not. The queries are the last T positions."""
    query_position = torch.arange(context_len - num_tokens, context_len).unsqueeze(1)  # [T, 1]
    key_position = torch.arange(context_len)  # [context]
    is_hidden = key_position > query_position  # [T, context]
    if window is not None:
        is_hidden |= key_position <= query_position - window
    return torch.zeros(num_tokens, context_len).masked_fill_(is_hidden, float("-inf"))
