"""Kernels for a GPU: matrix products by cuBLAS through torch, attention by Triton, the rest by torch's own operators.

No operator waits for the device or creates a tensor elsewhere. Packed weights are expanded at load. Steps are not
captured in CUDA graphs yet: each kernel is launched separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from engine.checkpoints.quantized import PackedForm
from engine.kernels.interface import Attention, AttentionShape, KvPool, Operator
from engine.kernels.paged_attention import PagedAttention
from engine.kernels.reference import Kernels


class DeviceKernels(Kernels):
    """See `engine.kernels.reference.Kernels`."""

    has_cheap_multi_token_rows = True

    def supports_packed(self, _form: PackedForm, _shape: tuple[int, int], _dtype: torch.dtype) -> bool:
        return False

    def rms_norm(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> Operator:
        width, exact = (weight.numel(),), weight.float()
        return lambda x: functional.rms_norm(x, width, exact, eps).to(dtype)  # [T, C]

    def norm_heads(self, weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], None]:
        num_heads, head_dim = weight.shape

        def norm(x: torch.Tensor) -> None:
            heads = x[:, : num_heads * head_dim].unflatten(1, (num_heads, head_dim))  # [T, heads, D], a view
            heads.copy_(functional.rms_norm(heads.float(), (head_dim,), None, eps).mul_(weight))

        return norm

    def attention(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> Attention:
        return PagedAttention(pool, shape, sinks)
