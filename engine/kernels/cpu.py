"""CPU kernels in torch with few and cheap operators.

At these sizes a step costs as much as its operator calls (1 to 15 µs each, twice that with cold caches), so each kernel
is the shortest chain of operators found by measurement.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.kernels.cpu_attention import CpuAttention
from engine.kernels.cpu_linear import bind_linear
from engine.kernels.cpu_packed import bind_packed, supports_packed
from engine.kernels.interface import (
    Activation,
    AddInPlace,
    AddLowRank,
    Attention,
    AttentionShape,
    KvPool,
    LowRank,
    LowRankShape,
    LowRankTokens,
    Operator,
    RotaryTables,
    Rotate,
)
from engine.kernels.reference import ACTIVATIONS, Kernels, ReferenceLowRank

# torch's operator without its Python wrapper, at a third of the calls; the wrapper if this private name is missing.
_SILU: Operator = getattr(torch._C._nn, "silu", ACTIVATIONS["silu"])
_MIN_RUN_TOKENS = 16  # tokens of one adapter from which a product of their own is faster than a copy for each


class CpuKernels(Kernels):
    """See `engine.kernels.reference.Kernels`."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        return bind_linear(weight, bias)

    def supports_packed(self, form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> bool:
        return supports_packed(form, shape, dtype)

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        return bind_packed(matrix, bias, dtype)

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

    def norm_heads(self, weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], None]:
        """As `rms_norm`, for all heads at once."""
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

    def rotation(self, num_heads: int) -> Rotate:
        def rotate(qkv: torch.Tensor, tables: RotaryTables) -> None:
            cos, sin = tables
            half = cos.shape[-1]
            heads = qkv[:, : num_heads * 2 * half].view(-1, num_heads, 2, half)  # [T, heads, 2, D/2]
            torch.addcmul(heads * cos, heads.flip(2), sin, out=heads)

        return rotate

    def activation(self, activation: Activation) -> Operator:
        if activation.kind != "silu" or activation.limit is not None:
            return super().activation(activation)
        if not activation.is_gated:
            return _SILU

        def gate(gate_up: torch.Tensor) -> torch.Tensor:
            gate, up = gate_up.chunk(2, -1)  # 2 × [T, I]
            return _SILU(gate).mul_(up)

        return gate

    def add(self, multiplier: float) -> AddInPlace:
        return torch.Tensor.add_ if multiplier == 1 else functools.partial(torch.Tensor.add_, alpha=multiplier)

    def low_rank(self, shape: LowRankShape, _dtype: torch.dtype) -> LowRank:
        return CpuLowRank(shape)

    def attention(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> Attention:
        return CpuAttention(pool, shape, sinks)


class CpuLowRank(ReferenceLowRank):
    """As the reference, with batched products: a product per adapter for its many tokens, one for all other tokens.

    Each of the other tokens is multiplied by a copy of its adapter, so that its result does not depend on other tokens.
    """

    def bind(self, memory: torch.Tensor, tokens: LowRankTokens) -> AddLowRank:
        slots, counts = tokens.slots.unique_consecutive(return_counts=True)
        has_many = counts >= _MIN_RUN_TOKENS
        is_single = ~has_many.repeat_interleave(counts)
        runs = zip(slots[has_many].unsqueeze(1), tokens.rows[~is_single].split(counts[has_many].tolist()), strict=True)
        batches = [(slot, rows.unsqueeze(0)) for slot, rows in runs]  # [1], [1, n]
        if is_single.any():
            batches.append((tokens.slots[is_single], tokens.rows[is_single].unsqueeze(1)))  # [n], [n, 1]

        def add(x: torch.Tensor, y: torch.Tensor) -> None:
            for batch, rows in batches:
                a, *outputs = memory[batch].split(self._sizes, 1)
                hidden = torch.bmm(x[rows].to(memory.dtype), a.view(len(batch), self._shape.num_in, -1))
                for own, b, (first, last) in zip(
                    hidden.split(self._shape.rank, 2), outputs, self._shape.parts, strict=True
                ):
                    y[rows, first:last] += torch.bmm(own, b.view(len(batch), self._shape.rank, -1))

        return add
