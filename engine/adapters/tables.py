"""Tables of adapter matrices for one linear map, in the layout of the torch operators.

A linear map has a table of inputs, S × C rows of P r values, and tables of outputs, whose rows are as wide as the parts
of the map that they add to. Each slot has its own rows in every table. The memory of a cleared slot returns to the
operating system at once.

Letters: S slots, C inputs, P changed parts of a map, r padded rank.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.arrays import ceil_div
from engine.layers.linear import Linear


class Table:
    """A tensor [S × rows, width], zero where nothing was written."""

    def __init__(
        self, num_slots: int, rows: int, width: int, dtype: torch.dtype, are_pages_large: bool = False
    ) -> None:
        self._rows = rows
        self._slot_bytes = rows * width * dtype.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._memory = mmap.mmap(-1, num_slots * self._slot_bytes, flags=flags)  # pages are allocated when written
        if are_pages_large and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # not supported by every kernel
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self.data = torch.frombuffer(self._memory, dtype=dtype).view(num_slots * rows, width)

    def slot(self, slot: int) -> torch.Tensor:
        """Return the rows [rows, width] of one slot."""
        return self.data[slot * self._rows : (slot + 1) * self._rows]

    def clear(self, slot: int) -> None:
        """Zero the rows of a slot. Whole pages return to the operating system."""
        first, last = slot * self._slot_bytes, (slot + 1) * self._slot_bytes
        first_page, last_page = ceil_div(first, mmap.PAGESIZE) * mmap.PAGESIZE, last // mmap.PAGESIZE * mmap.PAGESIZE
        if first_page >= last_page:
            self._bytes[first:last].zero_()
            return
        self._bytes[first:first_page].zero_()
        self._bytes[last_page:last].zero_()
        self._memory.madvise(mmap.MADV_DONTNEED, first_page, last_page - first_page)


@dataclass(frozen=True)
class Run:
    """Adjacent changed parts of equal width: columns [first, last) of the map's output."""

    parts: range  # among the P
    first: int
    last: int
    table: Table  # [S × parts × r, width of a part]


class SiteTables:
    """Tables of one linear map: x [T, C] @ `inputs` [C, P r], multiplied by the tables of `runs`, is added."""

    def __init__(self, linear: Linear, names: Sequence[str], rank: int, num_slots: int, dtype: torch.dtype) -> None:
        """`names` are the changed parts in the order of the linear map."""
        self.names, self.rank, self.num_in = tuple(names), rank, linear.shape[1]
        self.inputs = Table(num_slots, self.num_in, len(names) * rank, dtype)
        self.is_whole = tuple(linear.parts) == self.names
        self._order = {name: order_within(linear, name) for name in names}
        self.runs: list[Run] = []
        starts = first_outputs(linear)
        first = 0
        for last in range(1, len(names) + 1):
            if last == len(names) or not _continues(linear, starts, names[last - 1], names[last]):
                run = names[first:last]
                width = linear.parts[run[0]]
                table = Table(num_slots, len(run) * rank, width, dtype)
                column = starts[run[0]]
                self.runs.append(Run(range(first, last), column, column + len(run) * width, table))
                first = last

    def write(self, slot: int, name: str, a: torch.Tensor, b: torch.Tensor) -> None:
        """Store a [r', C] and b [out, r'] of one part, r' ≤ r. `b` includes the scale."""
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


def first_outputs(linear: Linear) -> dict[str, int]:
    """Return the index of each part's first output."""
    starts, first = {}, 0
    for name, num_out in linear.parts.items():
        starts[name] = first
        first += num_out
    return starts


def _continues(linear: Linear, starts: Mapping[str, int], name: str, following: str) -> bool:
    """Return True if part `following` is adjacent to part `name` and has the same width."""
    width = linear.parts[name]
    return linear.parts[following] == width and starts[following] == starts[name] + width


def order_within(linear: Linear, name: str) -> torch.Tensor | None:
    """Return the order in which the map stores the outputs of a part; None if it is unchanged."""
    if linear.order is None:
        return None
    first = first_outputs(linear)[name]
    return linear.order[first : first + linear.parts[name]] - first
