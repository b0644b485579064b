"""Root-mean-square normalisation."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.kernels.interface import Kernels, Operator


class RmsNorm:
    """x [T, C] float32 -> normalised and scaled, in the model's dtype. `forward` exists after `bind`."""

    forward: Operator

    def __init__(self, width: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self._weight = torch.empty(width, dtype=dtype, device=device)  # [C]
        self._eps = eps

    def destinations(self, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        yield f"{name}.weight", self._weight

    def bind(self, kernels: Kernels) -> None:
        self.forward = kernels.rms_norm(self._weight, self._eps, self._weight.dtype)
