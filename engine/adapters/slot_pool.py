"""Slot pools: memory for adapters of one shape, side by side, so that one operator serves a batch of them.

Adapters have the same shape if they change the same modules with the same padded rank. An adapter occupies one slot. If
the kernels have an operator for low-rank products, the values of a slot are one contiguous piece of memory, site after
site in the order of the model, so that a step reads them sequentially. Otherwise each site has tables (`tables.py`).
The memory of a freed slot returns to the operating system at once. Knows no files and no batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.adapters.tables import SiteTables, Table, first_outputs, order_within
from engine.arrays import ceil_div
from engine.kernels.interface import AddLowRank, LowRank, LowRankShape, LowRankTokens
from engine.kernels.reference import Kernels
from engine.layers.linear import Linear

_RANKS = (8, 16, 32, 64)
_MAX_SLOTS = 4096
_MAX_ROWS = 1 << 31  # kernels index rows with int32
_ALIGNMENT_BYTES = 64

Sites = Sequence[tuple[str, Linear]]  # linear maps that can be changed, each with the prefix of its parts' names


def padded_rank(rank: int) -> int:
    """Return the smallest supported rank that is at least `rank`."""
    return next(each for each in _RANKS if each >= rank)


@dataclass(frozen=True)
class AdapterShape:
    """Padded rank and changed modules (sorted)."""

    rank: int
    modules: tuple[str, ...]

    def changed(self, sites: Sites) -> dict[int, tuple[str, ...]]:
        """Return site index -> names of the changed parts, in the order of the linear map."""
        names = {
            index: tuple(name for name in linear.parts if prefix + name in self.modules)
            for index, (prefix, linear) in enumerate(sites)
        }
        return {index: found for index, found in names.items() if found}


@dataclass(frozen=True)
class AdapterSize:
    """The memory that one adapter needs."""

    shape: AdapterShape
    num_bytes: int


class PackedSite:
    """The matrices that adapters of one shape add to one linear map, in the layout of the kernel that adds them."""

    def __init__(self, linear: Linear, names: Sequence[str], kernel: LowRank, memory: torch.Tensor) -> None:
        """`memory` is [S, kernel.size], with a stride between slots."""
        self.names, self._kernel, self._memory = tuple(names), kernel, memory
        self._orders = [order_within(linear, name) for name in names]

    def write(self, slot: int, name: str, a: torch.Tensor, b: torch.Tensor) -> None:
        """As `SiteTables.write`."""
        part = self.names.index(name)
        order = self._orders[part]
        self._kernel.write(self._memory[slot], part, a, b if order is None else b[order])

    def bind(self, tokens: LowRankTokens) -> AddLowRank:
        return self._kernel.bind(self._memory, tokens)


class SlotPool:
    """Slots for adapters of one shape: `num_slots`, or as many as `budget_bytes` hold if 0."""

    def __init__(
        self,
        shape: AdapterShape,
        sites: Sites,
        dtype: torch.dtype,
        budget_bytes: int,
        kernels: Kernels,
        num_slots: int = 0,
    ) -> None:
        self.shape, self.itemsize = shape, dtype.itemsize
        self.slot_bytes = slot_bytes(shape, sites, dtype)
        changed = shape.changed(sites)
        self._sites = {index: sites[index] for index in changed}
        widest = max(max(sites[index][1].shape[1], len(names) * shape.rank) for index, names in changed.items())
        num_slots = num_slots or min(_MAX_SLOTS, budget_bytes // self.slot_bytes, _MAX_ROWS // widest - 1)
        self.num_slots = num_slots
        self.tables: dict[int, SiteTables] = {}
        self.packed: dict[int, PackedSite] = {}  # either this or `tables` is filled
        found = {
            index: kernels.low_rank(_shape_of(sites[index][1], names, shape.rank), dtype)
            for index, names in changed.items()
        }
        whole = {index: kernel for index, kernel in found.items() if kernel is not None}
        if len(whole) == len(changed):
            alignment = _ALIGNMENT_BYTES // dtype.itemsize
            stride = ceil_div(sum(kernel.size for kernel in whole.values()), alignment) * alignment
            self._memory = Table(num_slots, 1, stride, dtype, are_pages_large=True)
            first = 0
            for index, kernel in whole.items():
                memory = self._memory.data[:, first : first + kernel.size]
                self.packed[index] = PackedSite(sites[index][1], changed[index], kernel, memory)
                first += kernel.size
        else:
            for index, names in changed.items():
                self.tables[index] = SiteTables(sites[index][1], names, shape.rank, num_slots, dtype)
        self._free = list(range(num_slots - 1, -1, -1))
        self.num_used = 0

    @property
    def is_full(self) -> bool:
        return not self._free

    def take(self) -> int:
        """Return an empty slot, filled with zeros."""
        self.num_used += 1
        return self._free.pop()

    def write(self, slot: int, matrices: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Fill a slot: module -> (a, b) of the whole model, in any floating-point type. Stores this rank's part."""
        sites: Mapping[int, SiteTables | PackedSite] = self.packed or self.tables
        for index, site in sites.items():
            prefix, linear = self._sites[index]
            for name in site.names:
                site.write(slot, name, *linear.own_low_rank(name, *matrices[prefix + name]))

    def free(self, slot: int) -> None:
        """Clear a slot that is not used any more."""
        if self.packed:
            self._memory.clear(slot)
        for tables in self.tables.values():
            tables.clear(slot)
        self.num_used -= 1
        self._free.append(slot)


def slot_bytes(shape: AdapterShape, sites: Sites, dtype: torch.dtype) -> int:
    """Return the bytes of one adapter of a shape."""
    num_elements = 0
    for index, names in shape.changed(sites).items():
        linear = sites[index][1]
        num_elements += shape.rank * sum(linear.shape[1] + linear.parts[name] for name in names)
    return num_elements * dtype.itemsize


def _shape_of(linear: Linear, names: Sequence[str], rank: int) -> LowRankShape:
    starts = first_outputs(linear)
    parts = tuple((starts[name], starts[name] + linear.parts[name]) for name in names)
    return LowRankShape(linear.shape[1], rank, parts)
