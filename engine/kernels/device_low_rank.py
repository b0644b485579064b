"""LoRA adapters on a device: tokens in tiles of one adapter each, and the layout of an adapter's numbers.

`triton_low_rank.py` has the kernels. On a CPU the operators compute one token at a time, as their reference does.

Letters: T tokens, C inputs of a linear map, n tokens with adapters, P parts, r rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.arrays import Ints, Longs, ceil_div, segment_offsets
from engine.kernels.interface import AddLowRank, Float8Rows, LowRankShape, LowRankTokens

TILE = 16  # tokens; matrix units take at least 16 rows
COLUMNS = 128  # outputs per program


def tile_tokens(slots: Ints, rows: Longs, num_tokens: int, max_adapters: int) -> tuple[Ints, Ints]:
    """Divide n tokens, those of an adapter adjacent, into tiles of one adapter each.

    Returns int32 rows [T], padded, and int32 tiles [as many as any choice needs, 3]: slot, first of the tile's rows,
    number of rows (0 if the tile is not used).
    """
    starts = np.flatnonzero(np.diff(slots, prepend=-1))  # first token of each adapter
    counts = np.diff(starts, append=len(slots))
    num_tiles = ceil_div(counts, TILE)
    offsets = segment_offsets(num_tiles) * TILE
    tiles = np.zeros((min(num_tokens, num_tokens // TILE + max_adapters), 3), np.int32)
    used = tiles[: len(offsets)]
    used[:, 0] = np.repeat(slots[starts], num_tiles)
    used[:, 1] = np.repeat(starts, num_tiles) + offsets
    used[:, 2] = np.minimum(np.repeat(counts, num_tiles) - offsets, TILE)
    padded = np.zeros(num_tokens, np.int32)
    padded[: len(rows)] = rows
    return padded, tiles


def column_blocks(shape: LowRankShape) -> NDArray[np.int32]:
    """Return the blocks of columns that programs add to, int32 [blocks, 4]: part, first column in y, number of columns,
    and where the block's numbers of B begin in an adapter's memory."""
    blocks, first_number = [], shape.num_in * len(shape.parts) * shape.rank
    for part, (first, last) in enumerate(shape.parts):
        for column in range(first, last, COLUMNS):
            begin = first_number + (column - first) * shape.rank
            blocks.append((part, column, min(COLUMNS, last - column), begin))
        first_number += (last - first) * shape.rank
    return np.array(blocks, np.int32)


class DeviceLowRank:
    """See `engine.kernels.interface.LowRank`. A as [P r, C], then each part's B as [width, r].

    On a device, `memory` of `bind` is int64 [S]: the address of each adapter's numbers, a multiple of 16.
    """

    def __init__(self, shape: LowRankShape, dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self._blocks: torch.Tensor | None = None  # `column_blocks` on the device
        sizes = [shape.num_in * len(shape.parts) * shape.rank]
        self._sizes = sizes + [shape.rank * (last - first) for first, last in shape.parts]
        self.size = sum(self._sizes)

    def matrices(self, memory: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return A [P, r, C] and each part's B [width, r], views of an adapter's memory."""
        a, *bs = memory.split(self._sizes)
        return a.view(len(bs), self.shape.rank, -1), [b.view(-1, self.shape.rank) for b in bs]

    def write(self, memory: torch.Tensor, part: int, a: torch.Tensor, b: torch.Tensor) -> None:
        inputs, outputs = self.matrices(memory)
        inputs[part, : len(a)] = a.to(memory)
        outputs[part][:, : len(a)] = b.to(memory)

    def bind(self, memory: torch.Tensor, tokens: LowRankTokens) -> AddLowRank:
        if memory.device.type == "cpu":
            return lambda x, y: self._add_slowly(memory, tokens, x, y)
        if self._blocks is None:
            self._blocks = torch.from_numpy(column_blocks(self.shape)).to(memory.device)
        operands = (self.shape, self.dtype, memory, self._blocks, tokens)

        def add(x: torch.Tensor, y: torch.Tensor) -> None:
            _launch(*operands, x.expand(self.dtype) if isinstance(x, Float8Rows) else x, y)

        return add

    def _add_slowly(self, memory: torch.Tensor, tokens: LowRankTokens, x: torch.Tensor, y: torch.Tensor) -> None:
        for slot, row in zip(tokens.slots.tolist(), tokens.rows.tolist(), strict=True):
            inputs, outputs = self.matrices(memory[slot])
            hidden = (inputs.float() @ x[row].float()).to(memory.dtype).float()  # [P, r]
            for own, matrix, (first, last) in zip(hidden, outputs, self.shape.parts, strict=True):
                y[row, first:last] = (y[row, first:last].float() + matrix.float() @ own).to(y.dtype)


def _launch(*operands: Any) -> None:
    from engine.kernels.triton_low_rank import add_low_rank  # imported late, because Triton is optional

    add_low_rank(*operands)
