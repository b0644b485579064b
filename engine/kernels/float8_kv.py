"""Keys and values as 8-bit floats, with one scale per layer and KV head for keys, and one for values: the definition.

A pool without scales stores the model's own type, and these functions return its numbers unchanged.

Letters: G KV heads, D head size.
"""

from __future__ import annotations

import torch

from engine.kernels.interface import FLOAT8

_MAX = torch.finfo(FLOAT8).max  # 448


def to_stored(kv: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """Return kv [..., planes, G, D] as `indexable` numbers of a pool; scales are float32 [planes, G].

    Numbers beyond the largest 8-bit float become that float. NaN remains NaN.
    """
    if scales is None:
        return kv
    scaled = kv.float() * scales.reciprocal().unsqueeze(-1)
    return indexable(scaled.clamp(-_MAX, _MAX).to(FLOAT8))


def from_stored(stored: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """Return the numbers [..., planes, G, D] of `to_stored`, float32 if they have scales."""
    return stored if scales is None else stored.view(FLOAT8).float() * scales.unsqueeze(-1)


def indexable(data: torch.Tensor) -> torch.Tensor:
    """Return a view of the same memory that torch can index: 8-bit floats as bytes, other types unchanged."""
    return data.view(torch.uint8) if data.dtype == FLOAT8 else data
