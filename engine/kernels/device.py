"""The kernels as they run on a GPU: matrix products by cuBLAS through torch, attention by Triton, the rest by torch's
own fused operators. None of them waits for the device, and none makes a tensor anywhere else.

Packed weights are expanded when they are loaded. Not yet captured in graphs: every step launches its kernels one by
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.kernels.interface import (
    Activation,
    Add,
    Attention,
    AttentionShape,
    Facts,
    KvPool,
    LowRank,
    LowRankShape,
    Operator,
    Place,
)
from engine.kernels.paged_attention import PagedAttention
from engine.kernels.reference import ACTIVATIONS


class DeviceKernels:
    """See `engine.kernels.interface.Kernels` for the law of each."""

    has_cheap_multi_token_rows = True

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        return lambda x: functional.linear(x, weight, bias)

    def takes_packed(self, _form: PackedForm, _shape: tuple[int, int], _dtype: torch.dtype) -> bool:
        return False

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        raise NotImplementedError("takes_packed said so")

    def linear_per_head(self, weight: torch.Tensor) -> Operator:
        num_heads, num_in, num_out = weight.shape

        def forward(x: torch.Tensor) -> torch.Tensor:
            heads = x.reshape(-1, num_heads, num_in).transpose(0, 1)  # [H, T, in]
            return torch.bmm(heads, weight).transpose(0, 1).reshape(-1, num_heads * num_out)

        return forward

    def rms_norm(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> Operator:
        width, exact = (weight.numel(),), weight.float()
        return lambda x: functional.rms_norm(x, width, exact, eps).to(dtype)  # [T, C]

    def layer_norm(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, dtype: torch.dtype) -> Operator:
        width, exact = (weight.numel(),), weight.float()
        exact_bias = None if bias is None else bias.float()
        return lambda x: functional.layer_norm(x, width, exact, exact_bias, eps).to(dtype)  # [T, C]

    def norm_heads(self, weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], None]:
        num_heads, head_dim = weight.shape

        def norm(x: torch.Tensor) -> None:
            heads = x[:, : num_heads * head_dim].unflatten(1, (num_heads, head_dim))  # [T, heads, D], a view
            heads.copy_(functional.rms_norm(heads.float(), (head_dim,), None, eps).mul_(weight))

        return norm

    def rotation(self, num_heads: int) -> Place:
        def rotate(qkv: torch.Tensor, facts: Facts) -> None:
            cos, sin = facts
            half = cos.shape[-1]
            heads = qkv[:, : num_heads * 2 * half].unflatten(1, (num_heads, 2, half))  # [T, heads, 2, D/2], a view
            heads.copy_(torch.addcmul(heads * cos, heads.flip(2), sin))

        return rotate

    def activation(self, activation: Activation) -> Operator:
        function = ACTIVATIONS[activation.kind]
        if not activation.is_gated:
            return function
        limit, slope = activation.limit, activation.slope

        def gate(gate_up: torch.Tensor) -> torch.Tensor:
            gate, up = gate_up.chunk(2, -1)  # 2 × [T, I]
            if limit is None:
                return function(gate).mul_(up)
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return torch.sigmoid(gate * slope).mul_(gate).mul_(up.add_(1))

        return gate

    def add(self, multiplier: float) -> Add:
        return lambda stream, x: stream.add_(x, alpha=multiplier)

    def low_rank(self, _shape: LowRankShape, _dtype: torch.dtype) -> LowRank | None:
        return None

    def attention(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> Attention:
        return PagedAttention(pool, shape, sinks)
