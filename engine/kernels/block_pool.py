"""The KV pool of a device: one contiguous span per block, in which each KV head of a layer has its tokens together.

A block of all layers is zeroed, copied or transferred as one piece, and attention reads block size × D consecutive
numbers of one head. See docs/decisions/0062.

Letters: N blocks, L layers, G KV heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.arrays import Ints
from engine.kernels.interface import AttentionShape, KvPool
from engine.kernels.upload import Upload


@dataclass(frozen=True, eq=False)
class BlockPool(KvPool):
    """`data` is [N, L, planes, G, block size, D], keys before values."""

    layout: ClassVar[str] = "blocks"

    @classmethod
    def allocate(
        cls,
        shape: AttentionShape,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> BlockPool:
        """Return a pool with undefined contents."""
        of_layer = shape.num_planes, shape.num_kv_heads, block_size, shape.head_dim
        return cls(torch.empty(num_blocks, num_layers, *of_layer, dtype=dtype, device=device), block_size)

    @property
    def num_layers(self) -> int:
        return self.data.shape[1]

    @property
    def num_blocks(self) -> int:
        return self.data.shape[0]

    @property
    def blocks(self) -> torch.Tensor:
        return self.data

    def _indices(self, block_ids: Ints) -> torch.Tensor:
        return Upload(self.data.device).move([block_ids])[0].long()
