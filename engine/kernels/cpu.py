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
_FIRST, _SUM = torch.zeros(1, dtype=torch.int32), 0  # offsets and mode of embedding_bag
_MIN_RUN_TOKENS = 16  # adjacent tokens of one adapter that share a product


class CpuKernels(Kernels):
    """See `engine.kernels.reference.Kernels`."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        return bind_linear(weight, bias)

    def supports_packed(self, form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> bool:
        return supports_packed(form, shape, dtype)

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        return bind_packed(matrix, bias, dtype)

    def rms_norm(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> Operator:
        """Return the RMS norm as x · c / hypot(‖x‖, c √ε) with c = √C: four operators instead of torch's eight."""
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
        """Return the RMS norm of all heads at once, computed like `rms_norm`."""
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
        if pool.scales is not None:
            return super().attention(pool, shape, sinks)
        return CpuAttention(pool, shape, sinks)


class CpuLowRank(ReferenceLowRank):
    """LoRA by torch's matrix products: one product for a long run of tokens of one adapter.

    Other tokens are multiplied one by one, so that their result does not depend on other tokens.
    """

    def bind(self, memory: torch.Tensor, tokens: LowRankTokens) -> AddLowRank:
        groups = []
        for slot, first, last in _runs(tokens):
            matrices = self._matrices(memory[slot])
            step = last - first if last - first >= _MIN_RUN_TOKENS else 1
            groups += [(slice(row, row + step), *matrices) for row in range(first, last, step)]

        def add(x: torch.Tensor, y: torch.Tensor) -> None:
            for rows, inputs, outputs in groups:
                hidden = _product(x[rows].to(memory.dtype), inputs)  # [n, P r]
                for own, matrix, (first, last) in zip(
                    hidden.split(self._shape.rank, 1), outputs, self._shape.parts, strict=True
                ):
                    y[rows, first:last].add_(_product(own, matrix))

        return add


def _product(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return x [n, C] @ matrix [C, out]; one bfloat16 row as a weighted sum of rows, faster than a product."""
    if len(x) > 1 or x.dtype == torch.float32:
        return torch.mm(x, matrix)
    indices = torch.arange(len(matrix), dtype=torch.int32)
    return torch.embedding_bag(matrix, indices, _FIRST, False, _SUM, False, x.reshape(-1))[0]


def _runs(tokens: LowRankTokens) -> list[tuple[int, int, int]]:
    """Return slot, first row and last row + 1 of each run of adjacent tokens with one adapter."""
    runs: list[tuple[int, int, int]] = []
    for slot, row in zip(tokens.slots.tolist(), tokens.rows.tolist(), strict=True):
        if runs and runs[-1][0] == slot and runs[-1][2] == row:
            runs[-1] = (slot, runs[-1][1], row + 1)
        else:
            runs.append((slot, row, row + 1))
    return runs
