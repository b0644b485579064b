"""Position encodings of queries and keys: tables over positions 0 … P - 1, looked up at most once per step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.kernels.interface import RotaryLookup, RotaryTables


class Rotary:
    """Cosines and sines of `frequencies`, float32 [rotary size / 2] in radians per position, times `attention_factor`.

    Elements of a head without a frequency are not rotated.
    """

    def __init__(
        self,
        frequencies: torch.Tensor,
        attention_factor: float,
        head_dim: int,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device,
        sections: Sequence[int] = (),
        *,
        is_lookup: bool = False,
    ) -> None:
        """`sections` are the numbers of frequencies that use the position on each axis, in order. With `is_lookup`,
        `at` leaves the lookup to the kernel."""
        self._sections, self._is_lookup = sections, is_lookup
        shape = (num_positions, 1, 3, head_dim // 2)
        self._table = _filled(torch.empty(shape, dtype=dtype, device=device), frequencies, attention_factor)

    def at(self, positions: torch.Tensor) -> RotaryTables:
        """int64 [T], or [axes, T] with sections -> cos [T, 1, 1, D/2], sin [T, 1, 2, D/2] with the first half
        negated."""
        if positions.ndim == 1:
            if self._is_lookup:
                return RotaryLookup(self._table, positions)
            rows = self._table.index_select(0, positions)
        else:
            parts = self._table.split(tuple(self._sections), 3)
            rows = torch.cat([part.index_select(0, own) for part, own in zip(parts, positions, strict=True)], 3)
        cos, sin = rows.split((1, 2), 2)
        return cos, sin


def _filled(table: torch.Tensor, frequencies: torch.Tensor, attention_factor: float) -> torch.Tensor:
    """Fill a table [P, 1, 3, D/2] on its device: cosines, and sines negated and not. Computed in float32."""
    cos, negated, sin = table[:, 0].unbind(1)  # [P, D/2] each
    num_turning, positions = len(frequencies), torch.arange(len(table), device=table.device)
    angles = positions.float().unsqueeze(1) * frequencies.to(table.device)  # float32 [P, rotary size / 2]
    cos[:, :num_turning] = angles.cos() * attention_factor
    cos[:, num_turning:] = 1
    sines = angles.sin_().mul_(attention_factor)
    sin[:, :num_turning] = sines
    sin[:, num_turning:] = 0
    negated[:, :num_turning] = sines.neg_()
    negated[:, num_turning:] = -0.0
    return table


class Temperature:
    """Growth of queries with their position: 1 + rate × log(1 + floor((position + 1) / interval))."""

    def __init__(
        self,
        rate: float,
        interval: float,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        intervals = torch.floor((torch.arange(num_positions, device=device).float() + 1) / interval)  # [P]
        self._table = (torch.log1p(intervals) * rate + 1).unsqueeze(1).to(dtype)  # [P, 1]

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor]:
        """int64 [T] -> factors [T, 1]."""
        return (self._table.index_select(0, positions),)
