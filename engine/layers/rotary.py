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
        table = _table(frequencies, attention_factor, head_dim, num_positions)
        self._table = table.to(dtype).to(device)  # [P, 1, 3, D/2]

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


def _table(frequencies: torch.Tensor, attention_factor: float, head_dim: int, num_positions: int) -> torch.Tensor:
    """Return float32 [P, 1, 3, D/2]: cosines, and sines negated and not."""
    angles = torch.arange(num_positions).float().unsqueeze(1) * frequencies  # float32 [P, rotary size / 2]
    cos, sin = angles.cos() * attention_factor, angles.sin() * attention_factor
    num_still = head_dim // 2 - len(frequencies)
    cos = torch.cat((cos, cos.new_ones(num_positions, num_still)), 1)  # [P, D/2]
    sin = torch.cat((sin, sin.new_zeros(num_positions, num_still)), 1)  # [P, D/2]
    return torch.stack((cos, -sin, sin), 1).unsqueeze(1)


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
        intervals = torch.floor((torch.arange(num_positions).float() + 1) / interval)  # [P]
        factors = (torch.log1p(intervals) * rate + 1).unsqueeze(1).to(dtype)  # [P, 1]
        self._table = factors.to(device)  # [P, 1]

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor]:
        """int64 [T] -> factors [T, 1]."""
        return (self._table.index_select(0, positions),)
