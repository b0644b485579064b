"""Kernels for a GPU: matrix products by cuBLAS through torch; attention, the operators between products, experts,
adapters and products with packed weights by Triton.

No operator waits for the device or creates a tensor elsewhere. Operands that are not on a CUDA device take the
operators of `Kernels`, which define the same results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from engine.arrays import Ints, Longs
from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.kernels.block_pool import BlockPool
from engine.kernels.device_experts import mix, mix_slowly
from engine.kernels.device_low_rank import DeviceLowRank, tile_tokens
from engine.kernels.device_packed import bind_packed, bind_table, float8_fault, supports_packed
from engine.kernels.interface import (
    Activation,
    AddNorm,
    Attention,
    AttentionShape,
    EmbedNorm,
    ExpertMatrices,
    KvPool,
    LowRank,
    LowRankShape,
    LowRankTokens,
    MixExperts,
    NormConstants,
    Operator,
    RotaryLookup,
    RotaryTables,
    SelfAttend,
)
from engine.kernels.launch import HeadUpdate
from engine.kernels.paged_attention import PagedAttention
from engine.kernels.reference import Kernels
from engine.kernels.upload import Upload


class DeviceKernels(Kernels):
    """See `engine.kernels.reference.Kernels`."""

    looks_up_positions = True
    has_cheap_multi_token_rows = True

    def __init__(self, attention: str = "auto") -> None:
        """`attention` names the attention kernels, see `engine.kernels.paged_attention.BACKENDS`."""
        self._attention = attention

    def supports_packed(self, form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> bool:
        return supports_packed(form, shape, dtype)

    def float8_fault(self) -> str:
        return float8_fault()

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        if not has_triton(matrix.packed.device):
            return super().packed_linear(matrix, bias, dtype)
        return bind_packed(matrix, bias, dtype)

    def packed_table(self, matrix: QuantizedTensor, dtype: torch.dtype) -> tuple[Operator, Operator]:
        if matrix.is_float or not has_triton(matrix.packed.device):
            return super().packed_table(matrix, dtype)
        return bind_table(matrix)

    def rms_norm(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> Operator:
        width, exact = (weight.numel(),), weight.float()
        return lambda x: functional.rms_norm(x, width, exact, eps).to(dtype)  # [T, C]

    def add_norm(self, multiplier: float, norm: NormConstants, before: NormConstants | None = None) -> AddNorm:
        plain = super().add_norm(multiplier, norm, before)

        def forward(stream: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            if not has_triton(stream.device):
                return plain(stream, x)
            from engine.kernels.triton_fused import add_norm

            return add_norm(stream, x, multiplier, norm, before)

        return forward

    def embed_norm(self, table: torch.Tensor, multiplier: float, norm: NormConstants) -> EmbedNorm:
        if not has_triton(table.device):
            return super().embed_norm(table, multiplier, norm)
        from engine.kernels.triton_fused import embed_norm

        return lambda token_ids: embed_norm(token_ids, table, multiplier, norm)

    def activation(self, activation: Activation) -> Operator:
        plain = super().activation(activation)
        if not activation.is_gated:
            return plain

        def forward(x: torch.Tensor) -> torch.Tensor:
            if not has_triton(x.device):
                return plain(x)
            from engine.kernels.triton_fused import activate

            return activate(x, activation)

        return forward

    def float8_activation(self, activation: Activation) -> Operator:
        plain = super().float8_activation(activation)

        def forward(x: torch.Tensor) -> torch.Tensor:
            if not activation.is_gated or not has_triton(x.device):
                return plain(x)
            from engine.kernels.triton_fused import round_rows

            return round_rows(x, activation).as_operand()

        return forward

    def experts(self, matrices: ExpertMatrices) -> MixExperts:
        chosen = mix if has_triton(matrices.up.device) else mix_slowly
        return functools.partial(chosen, matrices, self.activation(matrices.activation))

    def low_rank(self, shape: LowRankShape, dtype: torch.dtype) -> LowRank:
        return DeviceLowRank(shape, dtype)

    def low_rank_tokens(
        self, slots: Ints, rows: Longs, num_tokens: int, max_adapters: int, device: torch.device
    ) -> LowRankTokens:
        if device.type == "cpu":
            return super().low_rank_tokens(slots, rows, num_tokens, max_adapters, device)
        uploaded = Upload(device).move(tile_tokens(slots, rows, num_tokens, max_adapters))
        return LowRankTokens(torch.from_numpy(slots), *uploaded)

    def norm_heads(self, weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], None]:
        num_heads, head_dim = weight.shape

        def norm(x: torch.Tensor) -> None:
            heads = x[:, : num_heads * head_dim].unflatten(1, (num_heads, head_dim))  # [T, heads, D], a view
            heads.copy_(functional.rms_norm(heads.float(), (head_dim,), None, eps).mul_(weight))

        return norm

    def attention(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> Attention:
        return PagedAttention(pool, shape, sinks, self._attention)

    def allocate_pool(
        self,
        shape: AttentionShape,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KvPool:
        return BlockPool.allocate(shape, num_layers, num_blocks, block_size, dtype, device)

    def self_attention(
        self, num_rotated_heads: int, norm_weight: torch.Tensor | None = None, eps: float = 0.0
    ) -> SelfAttend:
        weight = None if norm_weight is None else norm_weight.float().contiguous()
        composed = super().self_attention(num_rotated_heads, weight, eps)

        def attend(attention: Attention, layer: int, qkv: torch.Tensor, tables: RotaryTables) -> torch.Tensor:
            assert isinstance(attention, PagedAttention)
            if num_rotated_heads and not isinstance(tables, RotaryLookup):  # positions on several axes
                return composed(attention, layer, qkv, tables)
            lookup = tables if isinstance(tables, RotaryLookup) and num_rotated_heads else None
            return attention.attend_updated(layer, qkv, HeadUpdate(weight, eps, lookup))

        return attend


def has_triton(device: torch.device) -> bool:
    """Return True if Triton kernels run on the device. Modules with kernels are imported late: Triton is optional."""
    return device.type == "cuda"
