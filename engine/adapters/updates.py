"""What the bank of a leading rank tells the banks of the others: which adapters come and go, in that order. Each rank
cuts its own part out of an adapter's matrices; only the leader reads files and decides what stays."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.adapters.slot_pool import AdapterShape


@dataclass(frozen=True, eq=False)
class AdapterAdded:
    """An adapter by its handle: module -> (a [r, in], scale × b [out, r]) of the whole model, for a shelf of so many
    slots."""

    handle: int
    kind: AdapterShape
    num_slots: int
    matrices: dict[str, tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class AdapterRemoved:
    handle: int


AdapterUpdate = AdapterAdded | AdapterRemoved
