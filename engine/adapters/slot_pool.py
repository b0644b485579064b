"""Adapters of one kind, side by side: equal targets and equal (padded) ranks, so that one operator serves a batch.

An adapter is a number s below S. Where the kernels have an operator for them, an adapter's numbers are one piece of
memory, map behind map in the order of the model, so that a step reads them in a row; else they lie in tables of each
map. The memory of an adapter that left goes back to the system at once. Knows no files and no batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.adapters.tables import SiteTables, Table, first_outputs, order_within
from engine.arrays import ceil_div
from engine.kernels.interface import AddLowRank, Kernels, LowRank, LowRankShape, LowRankTokens
from engine.layers.linear import Linear

_RANKS = (8, 16, 32, 64)
_MAX_SLOTS = 4096
_MAX_ROWS = 1 << 31  # rows are counted in int32
_ALIGNMENT_BYTES = 64

Sites = Sequence[tuple[str, Linear]]


def padded_rank(rank: int) -> int:
    return next(each for each in _RANKS if each >= rank)


@dataclass(frozen=True)
class AdapterShape:
    """`modules` are the names of the changed parts, sorted."""

    rank: int
    modules: tuple[str, ...]

    def changed(self, sites: Sites) -> dict[int, tuple[str, ...]]:
        """By the index of the site: its changed parts as the map names them, in its order."""
        names = {
            index: tuple(name for name in linear.parts if prefix + name in self.modules)
            for index, (prefix, linear) in enumerate(sites)
        }
        return {index: found for index, found in names.items() if found}


@dataclass(frozen=True)
class AdapterSize:
    """What one adapter takes."""

    kind: AdapterShape
    size_bytes: int


class PackedSite:
    """What adapters of one kind add to one linear map, laid out by the kernel that adds it."""

    def __init__(self, linear: Linear, names: Sequence[str], kernel: LowRank, memory: torch.Tensor) -> None:
        """`memory` [S, the kernel's size], rows apart."""
        self.names, self._kernel, self._memory = tuple(names), kernel, memory
        self._orders = [order_within(linear, name) for name in names]

    def write(self, slot: int, name: str, a: torch.Tensor, b: torch.Tensor) -> None:
        """As `SiteTables` does."""
        part = self.names.index(name)
        order = self._orders[part]
        self._kernel.write(self._memory[slot], part, a, b if order is None else b[order])

    def bind(self, tokens: LowRankTokens) -> AddLowRank:
        return self._kernel.bind(self._memory, tokens)


class SlotPool:
    """Room for adapters of one kind. `sites` are the maps that can be changed, with what their parts' names begin."""

    def __init__(
        self,
        kind: AdapterShape,
        sites: Sites,
        dtype: torch.dtype,
        budget_bytes: int,
        kernels: Kernels,
        num_slots: int = 0,
    ) -> None:
        """As many slots as `budget_bytes` hold, or `num_slots`."""
        self.kind, self.itemsize = kind, dtype.itemsize
        self.slot_bytes = slot_bytes(kind, sites, dtype)
        changed = kind.changed(sites)
        self._sites = {index: sites[index] for index in changed}
        widest = max(max(sites[index][1].shape[1], len(names) * kind.rank) for index, names in changed.items())
        num_slots = num_slots or min(_MAX_SLOTS, budget_bytes // self.slot_bytes, _MAX_ROWS // widest - 1)
        self.num_slots = num_slots
        self.tables: dict[int, SiteTables] = {}
        self.packed: dict[int, PackedSite] = {}  # either these or those
        found = {
            index: kernels.low_rank(_shape_of(sites[index][1], names, kind.rank), dtype)
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
                self.tables[index] = SiteTables(sites[index][1], names, kind.rank, num_slots, dtype)
        self._free = list(range(num_slots - 1, -1, -1))
        self.num_used = 0

    @property
    def is_full(self) -> bool:
        return not self._free

    def take(self) -> int:
        """A slot of zeros."""
        self.num_used += 1
        return self._free.pop()

    def write(self, slot: int, matrices: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Fill a slot: module -> (a, b) of the whole model, both in any real type; what this rank has of it stays."""
        sites: Mapping[int, SiteTables | PackedSite] = self.packed or self.tables
        for index, site in sites.items():
            prefix, linear = self._sites[index]
            for name in site.names:
                site.write(slot, name, *linear.own_low_rank(name, *matrices[prefix + name]))

    def give(self, slot: int) -> None:
        """Nobody uses the slot any more."""
        if self.packed:
            self._memory.clear(slot)
        for tables in self.tables.values():
            tables.clear(slot)
        self.num_used -= 1
        self._free.append(slot)


def slot_bytes(kind: AdapterShape, sites: Sites, dtype: torch.dtype) -> int:
    """Memory of one adapter of a kind."""
    num_elements = 0
    for index, names in kind.changed(sites).items():
        linear = sites[index][1]
        num_elements += kind.rank * sum(linear.shape[1] + linear.parts[name] for name in names)
    return num_elements * dtype.itemsize


def _shape_of(linear: Linear, names: Sequence[str], rank: int) -> LowRankShape:
    starts = first_outputs(linear)
    parts = tuple((starts[name], starts[name] + linear.parts[name]) for name in names)
    return LowRankShape(linear.shape[1], rank, parts)
