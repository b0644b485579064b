"""Experts of a mixture on a device, without a value that the host reads: every shape depends only on the number of
tokens.

`mix` uses the grouped products of `triton_experts.py`; `mix_slowly` is their definition in torch.

Letters: T tokens, C channels, E experts of this rank, K selected experts per token, I inner channels of an expert.
"""

from __future__ import annotations

import torch

from engine.kernels.interface import ExpertMatrices, Operator


def mix(
    matrices: ExpertMatrices, activate: Operator, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
) -> torch.Tensor:
    """See `engine.kernels.reference.Kernels.experts`."""
    from engine.kernels.triton_experts import combine, multiply, plan_tiles

    plan = plan_tiles(experts, matrices.first, len(matrices.up))
    if matrices.is_input_weighted:
        x = _weighted(x, weights)
    hidden = activate(multiply(x, matrices.up, matrices.up_bias, plan, is_input=True))  # [T K, I], sorted by expert
    outputs = multiply(hidden, matrices.down, matrices.down_bias, plan, is_input=False)  # [T K, C], by token
    return combine(outputs, None if matrices.is_input_weighted else weights, experts, matrices)


def mix_slowly(
    matrices: ExpertMatrices, activate: Operator, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
) -> torch.Tensor:
    """Compute `mix` with a copy of an expert's matrices for each of its tokens."""
    local = experts.flatten() - matrices.first  # [T K]
    is_local = (local >= 0) & (local < len(matrices.up))
    local = local.clamp(0, len(matrices.up) - 1)
    rows = _weighted(x, weights) if matrices.is_input_weighted else x.repeat_interleave(experts.shape[1], 0)
    hidden = activate(_multiply_slowly(rows, matrices.up, matrices.up_bias, local))
    outputs = _multiply_slowly(hidden, matrices.down, matrices.down_bias, local).float()  # [T K, C]
    if not matrices.is_input_weighted:
        outputs = outputs * weights.reshape(-1, 1)
    return outputs.masked_fill(is_local.logical_not().unsqueeze(1), 0).unflatten(0, experts.shape).sum(1)


def _weighted(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return each token's row [C] times each of its weights: [T K, C]."""
    return (x.unsqueeze(1) * weights.unsqueeze(-1)).to(x.dtype).flatten(0, 1)


def _multiply_slowly(
    x: torch.Tensor, matrices: torch.Tensor, bias: torch.Tensor | None, experts: torch.Tensor
) -> torch.Tensor:
    y = torch.bmm(matrices.index_select(0, experts), x.unsqueeze(-1)).squeeze(-1)
    return y if bias is None else y + bias.index_select(0, experts)
