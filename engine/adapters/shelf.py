"""Adapters of one kind, side by side: equal targets and equal (padded) ranks, so that one operator serves a batch.

Each linear map that the kind changes has a table of inputs, S × C rows of rank numbers, and tables of outputs, whose
rows are as wide as the parts of the map that they add to; an adapter is a number s below S and has its own rows in
each. The memory of an adapter that left goes back to the system at once. Knows no files and no batches.

Letters: S adapters, C inputs, P changed parts of a map, r padded rank.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.layers.linear import Linear

_RANKS = (8, 16, 32, 64)
_MAX_SLOTS = 4096
_MAX_ROWS = 1 << 31  # rows are counted in int32


def padded_rank(rank: int) -> int:
    return next(each for each in _RANKS if each >= rank)


@dataclass(frozen=True)
class Kind:
    """`modules` are the names of the changed parts, sorted."""

    rank: int
    modules: tuple[str, ...]


class Table:
    """[S × rows, width], zero where nothing was written."""

    def __init__(self, num_slots: int, rows: int, width: int, dtype: torch.dtype) -> None:
        self._rows = rows
        self._slot_bytes = rows * width * dtype.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._memory = mmap.mmap(-1, num_slots * self._slot_bytes, flags=flags)  # pages come when written
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self.data = torch.frombuffer(self._memory, dtype=dtype).view(num_slots * rows, width)

    def slot(self, slot: int) -> torch.Tensor:
        """[rows, width] of one adapter."""
        return self.data[slot * self._rows : (slot + 1) * self._rows]

    def clear(self, slot: int) -> None:
        """Zero an adapter's rows; whole pages go back to the system."""
        first, last = slot * self._slot_bytes, (slot + 1) * self._slot_bytes
        first_page, last_page = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, last // mmap.PAGESIZE * mmap.PAGESIZE
        if first_page >= last_page:
            self._bytes[first:last].zero_()
            return
        self._bytes[first:first_page].zero_()
        self._bytes[last_page:last].zero_()
        self._memory.madvise(mmap.MADV_DONTNEED, first_page, last_page - first_page)


@dataclass(frozen=True)
class Run:
    """Changed parts of a map that lie side by side and are equally wide: their columns [first, last) of its output."""

    parts: range  # among the P
    first: int
    last: int
    table: Table  # [S × parts × r, width of a part]


class SiteTables:
    """What adapters of one kind add to one linear map: x [T, C] @ `inputs` [C, P r], and by `runs` on from there."""

    def __init__(self, linear: Linear, names: Sequence[str], rank: int, num_slots: int, dtype: torch.dtype) -> None:
        """`names` are the changed parts, as the map names them, in its order."""
        self.names, self.rank, self.num_in = tuple(names), rank, linear.shape[1]
        self.inputs = Table(num_slots, self.num_in, len(names) * rank, dtype)
        self.is_whole = tuple(linear.parts) == self.names
        self._order = {name: _order_within(linear, name) for name in names}
        self.runs: list[Run] = []
        starts = _starts(linear)
        first = 0
        for last in range(1, len(names) + 1):
            if last == len(names) or not _goes_on(linear, starts, names[last - 1], names[last]):
                run = names[first:last]
                width = linear.parts[run[0]]
                table = Table(num_slots, len(run) * rank, width, dtype)
                column = starts[run[0]]
                self.runs.append(Run(range(first, last), column, column + len(run) * width, table))
                first = last

    def write(self, slot: int, name: str, a: torch.Tensor, b: torch.Tensor) -> None:
        """Put one part's a [r', C] and b [out, r'], r' <= r, the scale among them, where the map will find them."""
        part, rank = self.names.index(name), a.shape[0]
        first = part * self.rank
        self.inputs.slot(slot)[:, first : first + rank] = a.t()
        order = self._order[name]
        run = next(each for each in self.runs if part in each.parts)
        row = (part - run.parts.start) * self.rank
        run.table.slot(slot)[row : row + rank] = (b if order is None else b[order]).t()

    def clear(self, slot: int) -> None:
        self.inputs.clear(slot)
        for run in self.runs:
            run.table.clear(slot)


class Shelf:
    """Room for adapters of one kind. `sites` are the maps that can be changed, with what their parts' names begin."""

    def __init__(self, kind: Kind, sites: Sequence[tuple[str, Linear]], dtype: torch.dtype, budget_bytes: int) -> None:
        self.kind = kind
        changed = {
            index: [name for name in linear.parts if prefix + name in kind.modules]
            for index, (prefix, linear) in enumerate(sites)
        }
        changed = {index: names for index, names in changed.items() if names}
        self.slot_bytes, self.itemsize = slot_bytes(kind, sites, dtype), dtype.itemsize
        widest = max(max(sites[index][1].shape[1], len(names) * kind.rank) for index, names in changed.items())
        num_slots = min(_MAX_SLOTS, budget_bytes // self.slot_bytes, _MAX_ROWS // widest - 1)
        self.tables = {
            index: SiteTables(sites[index][1], names, kind.rank, num_slots, dtype) for index, names in changed.items()
        }
        self._prefixes = {index: sites[index][0] for index in changed}
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
        """Fill a slot: module -> (a, b), both in any real type."""
        for index, tables in self.tables.items():
            for name in tables.names:
                tables.write(slot, name, *matrices[self._prefixes[index] + name])

    def give(self, slot: int) -> None:
        """Nobody uses the slot any more."""
        for tables in self.tables.values():
            tables.clear(slot)
        self.num_used -= 1
        self._free.append(slot)


def slot_bytes(kind: Kind, sites: Sequence[tuple[str, Linear]], dtype: torch.dtype) -> int:
    """Memory of one adapter of a kind."""
    num_elements = 0
    for prefix, linear in sites:
        for name, num_out in linear.parts.items():
            if prefix + name in kind.modules:
                num_elements += kind.rank * (linear.shape[1] + num_out)
    return num_elements * dtype.itemsize


def _starts(linear: Linear) -> dict[str, int]:
    """The first output of each part."""
    starts, first = {}, 0
    for name, num_out in linear.parts.items():
        starts[name] = first
        first += num_out
    return starts


def _goes_on(linear: Linear, starts: Mapping[str, int], name: str, following: str) -> bool:
    width = linear.parts[name]
    return linear.parts[following] == width and starts[following] == starts[name] + width


def _order_within(linear: Linear, name: str) -> torch.Tensor | None:
    """How the part's outputs were rearranged; they stay among themselves."""
    if linear.order is None:
        return None
    first = _starts(linear)[name]
    return linear.order[first : first + linear.parts[name]] - first
