"""The kernels as they run on a CPU: the same laws as `reference.py` with few, cheap operators.

At these sizes a step costs what its operator calls cost (1 to 15 µs each, twice that once weights have passed through
the cache), so each kernel is the shortest chain found by measurement.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.kernels.cpu_attention import CpuAttention
from engine.kernels.cpu_linear import bind_linear
from engine.kernels.cpu_packed import bind_packed, takes_packed
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
from engine.kernels.reference import ACTIVATIONS

# The operator itself, a third of the calls of torch's wrapper around it, which comes in where it is not there.
_SILU: Operator = getattr(torch._C._nn, "silu", ACTIVATIONS["silu"])


class CpuKernels:
    """See `engine.kernels.interface.Kernels` for the law of each."""

    has_cheap_multi_token_rows = False

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        return bind_linear(weight, bias)

    def takes_packed(self, form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> bool:
        return takes_packed(form, shape, dtype)

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        return bind_packed(matrix, bias, dtype)

    def linear_per_head(self, weight: torch.Tensor) -> Operator:
        num_heads, num_in, num_out = weight.shape

        def forward(x: torch.Tensor) -> torch.Tensor:
            heads = x.view(-1, num_heads, num_in).transpose(0, 1)  # [H, T, in]
            return torch.bmm(heads, weight).transpose(0, 1).reshape(-1, num_heads * num_out)

        return forward

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

    def layer_norm(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, dtype: torch.dtype) -> Operator:
        width, weight = (weight.numel(),), weight.float()
        bias = None if bias is None else bias.float()

        def norm(x: torch.Tensor) -> torch.Tensor:
            return functional.layer_norm(x, width, weight, bias, eps).to(dtype)  # [T, C]

        return norm

    def norm_heads(self, weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], None]:
        """As `rms_norm`, for every head at once."""
        num_heads, head_dim = weight.shape
        root = math.sqrt(head_dim)
        floor = torch.tensor(root * math.sqrt(eps))
        scaled_weight = weight * root  # float32 [heads, D]
        length = torch.linalg.vector_norm

        def norm(x: torch.Tensor) -> None:
            heads = x[:, : num_heads * head_dim].unflatten(1, (num_heads, head_dim))  # [T, heads, D], a view
            exact = heads.float()
            torch.mul(torch.div(exact, length(exact, 2, -1, True).hypot_(floor)), scaled_weight, out=heads)

        return norm

    def rotation(self, num_heads: int) -> Place:
        def rotate(qkv: torch.Tensor, facts: Facts) -> None:
            cos, sin = facts
            half = cos.shape[-1]
            heads = qkv[:, : num_heads * 2 * half].view(-1, num_heads, 2, half)  # [T, heads, 2, D/2]
            torch.addcmul(heads * cos, heads.flip(2), sin, out=heads)

        return rotate

    def activation(self, activation: Activation) -> Operator:
        function = _SILU if activation.kind == "silu" else ACTIVATIONS[activation.kind]
        if not activation.is_gated:
            return function
        limit, slope = activation.limit or 0.0, activation.slope

        def gate(gate_up: torch.Tensor) -> torch.Tensor:
            gate, up = gate_up.chunk(2, -1)  # 2 × [T, I]
            return function(gate).mul_(up)

        def gate_limited(gate_up: torch.Tensor) -> torch.Tensor:
            gate, up = gate_up.chunk(2, -1)  # 2 × [T, I]
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            return torch.sigmoid(gate * slope).mul_(gate).mul_(up.add_(1))

        return gate if activation.limit is None else gate_limited

    def add(self, multiplier: float) -> Add:
        return torch.Tensor.add_ if multiplier == 1 else functools.partial(torch.Tensor.add_, alpha=multiplier)

    def low_rank(self, _shape: LowRankShape, _dtype: torch.dtype) -> LowRank | None:
        return None

    def attention(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> Attention:
        return CpuAttention(pool, shape, sinks)
