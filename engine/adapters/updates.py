"""Adapter updates: messages from the adapter cache of the leading rank to those of the other ranks, in order.

Each rank cuts its own part out of an adapter's matrices. Only the leader reads files and decides what is evicted.
"""

from __future__ import annotations

import torch
from msgspec import Struct

from engine.adapters.slot_pool import AdapterShape


class AdapterAdded(Struct, frozen=True, eq=False, array_like=True, tag=True):
    """A loaded adapter. `matrices` are module -> (a [r, in], scale × b [out, r]) of the whole model."""

    handle: int
    shape: AdapterShape
    num_slots: int  # size of the slot pool for adapters of this shape
    matrices: dict[str, tuple[torch.Tensor, torch.Tensor]]


class AdapterRemoved(Struct, frozen=True, array_like=True, tag=True):
    handle: int


AdapterUpdate = AdapterAdded | AdapterRemoved
