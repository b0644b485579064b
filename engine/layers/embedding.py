"""Token ids to vectors, and vectors to logits; a tied head reads the embedding's own weight."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.kernels.interface import Kernels, Operator


class Embedding:
    """One row of `weight` [V, C] for each token id."""

    def __init__(self, vocab_size: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.empty(vocab_size, width, dtype=dtype, device=device)  # [V, C]

    def destinations(self, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        yield f"{name}.weight", self.weight

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> float32 [T, C], the start of the residual stream."""
        return self.weight.index_select(0, token_ids).float()

    def tied_head(self, kernels: Kernels) -> Operator:
        """x [K, C] -> logits [K, V]. The embedding keeps its weight."""
        return kernels.linear(self.weight, None)
