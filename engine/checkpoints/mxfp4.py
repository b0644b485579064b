"""MXFP4: experts in 4-bit floats, in groups of 32 that share a power of two, as published for gpt-oss.

`name_blocks` is uint8 [experts, out, groups, 16], low half of each byte first; `name_scales` is uint8 [experts, out,
groups], exponents plus 127. The parameter is [experts, in, out].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.checkpoints.stored import (
    PIECE_ELEMENTS,
    Files,
    StoredTensor,
    WeightsError,
    ranges,
    refuse_unless_finite,
)

_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # followed by the same values, negative
_GROUP = 32


@dataclass(frozen=True)
class Mxfp4:
    """All experts' matrices of one kind."""

    name: str
    blocks: StoredTensor
    scales: StoredTensor

    @property
    def shape(self) -> tuple[int, ...]:
        num_experts, num_out, num_groups, _ = self.blocks.shape
        return num_experts, num_groups * _GROUP, num_out

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return self.blocks, self.scales

    @property
    def kind(self) -> str:
        return "MXFP4"

    @property
    def is_quantized(self) -> bool:
        return True

    def check(self) -> None:
        is_sound = (
            self.blocks.dtype == self.scales.dtype == "U8"
            and len(self.blocks.shape) == 4
            and self.blocks.shape[3] == _GROUP // 2
            and self.scales.shape == self.blocks.shape[:3]
        )
        if not is_sound:
            shapes = f"{list(self.blocks.shape)} and {list(self.scales.shape)}"
            raise WeightsError(f"{self.name}: blocks and scales of shapes {shapes} are not MXFP4")

    def narrowed(self, dim: int, first: int, last: int) -> Mxfp4 | None:
        if dim:
            return None
        return Mxfp4(self.name, self.blocks.rows(first, last), self.scales.rows(first, last))

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of outputs, counted over all experts."""
        num_experts, num_in, num_out = self.shape
        return ranges(num_experts * num_out, PIECE_ELEMENTS // max(num_in, 1))

    def fill(self, files: Files, destination: torch.Tensor, first: int, last: int) -> None:
        _, num_in, num_out = self.shape
        row_bytes, row_scales = num_in // 2, num_in // _GROUP
        data = torch.from_numpy(files.read_bytes(self.blocks, first * row_bytes, (last - first) * row_bytes))
        exponents = files.read_bytes(self.scales, first * row_scales, (last - first) * row_scales)
        table = torch.tensor([*_VALUES, *(-value for value in _VALUES)])
        halves = torch.stack((data & 15, data >> 4), -1)  # [bytes, 2]
        values = table[halves.int()].reshape(-1, _GROUP)  # float32 [outputs × groups, 32]
        powers = torch.from_numpy(exponents).to(torch.int32) - 127  # 255 encodes NaN and gives NaN
        values = torch.ldexp(values, powers.unsqueeze(1)).reshape(last - first, num_in)
        refuse_unless_finite(values, self.scales)
        for expert in range(first // num_out, (last - 1) // num_out + 1):
            start, stop = max(first, expert * num_out), min(last, (expert + 1) * num_out)
            rows = destination[expert].t()[start - expert * num_out : stop - expert * num_out]  # [outputs, in]
            rows.copy_(values[start - first : stop - first])
