"""Rotary position embedding: the cosines and sines of every position, looked up once a step."""

from __future__ import annotations

import torch


class Rotary:
    """A table over positions 0 … P - 1, from float32 `frequencies` [D/2] in radians per position."""

    def __init__(
        self, frequencies: torch.Tensor, attention_factor: float, num_positions: int, dtype: torch.dtype
    ) -> None:
        angles = torch.arange(num_positions).float().unsqueeze(1) * frequencies  # float32 [P, D/2]
        cos, sin = angles.cos() * attention_factor, angles.sin() * attention_factor
        self._table = torch.stack((cos, -sin, sin), 1).unsqueeze(1).to(dtype)  # [P, 1, 3, D/2]

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [T] -> cos [T, 1, 1, D/2], sin [T, 1, 2, D/2] with the first half negated."""
        cos, sin = self._table.index_select(0, positions).split((1, 2), 2)
        return cos, sin
