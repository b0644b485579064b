"""Slot pools: memory for adapters of one shape, side by side, so that one operator serves a batch of them.

Adapters have the same shape if they change the same modules with the same padded rank. An adapter occupies one slot: a
contiguous piece of memory, site after site in the order of the model, so that a step reads it sequentially. The memory
of a freed slot returns to the operating system or to the device's allocator at once. Knows no files and no batches.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.arrays import ceil_div
from engine.kernels.interface import AddLowRank, LowRank, LowRankShape, LowRankTokens
from engine.kernels.reference import Kernels
from engine.layers.linear import Linear

_RANKS = (8, 16, 32, 64)
_MAX_SLOTS = 4096
_ALIGNMENT_BYTES = 64
CPU = torch.device("cpu")

Linears = Sequence[tuple[str, Linear]]  # linear maps that can be changed, each with the prefix of its parts' names


def padded_rank(rank: int) -> int:
    """Return the smallest supported rank that is at least `rank`."""
    return next(each for each in _RANKS if each >= rank)


@dataclass(frozen=True)
class AdapterShape:
    """Padded rank and changed modules (sorted)."""

    rank: int
    modules: tuple[str, ...]

    def changed(self, linears: Linears) -> dict[int, tuple[str, ...]]:
        """Return index of a linear map -> names of the changed parts, in the order of the linear map."""
        names = {
            index: tuple(name for name in linear.parts if prefix + name in self.modules)
            for index, (prefix, linear) in enumerate(linears)
        }
        return {index: found for index, found in names.items() if found}


@dataclass(frozen=True)
class AdapterSize:
    """The memory that one adapter needs."""

    shape: AdapterShape
    num_bytes: int


class Site:
    """The matrices that adapters of one shape add to one linear map, in the layout of the kernel that adds them."""

    def __init__(self, linear: Linear, names: Sequence[str], kernel: LowRank, memory: torch.Tensor) -> None:
        """`memory` is that of `LowRank.bind`."""
        self.names, self._kernel, self._memory = tuple(names), kernel, memory
        self._orders = [_order_within(linear, name) for name in names]

    def write(self, memory: torch.Tensor, name: str, a: torch.Tensor, b: torch.Tensor) -> None:
        """Store a [r', C] and b [out, r'] of one part, r' ≤ r, in an adapter's memory. `b` includes the scale."""
        part = self.names.index(name)
        order = self._orders[part]
        self._kernel.write(memory, part, a, b if order is None else b[order])

    def bind(self, tokens: LowRankTokens) -> AddLowRank:
        return self._kernel.bind(self._memory, tokens)


class SlotPool:
    """Slots for adapters of one shape: `num_slots`, or as many as `budget_bytes` hold if 0."""

    def __init__(
        self,
        shape: AdapterShape,
        linears: Linears,
        dtype: torch.dtype,
        budget_bytes: int,
        kernels: Kernels,
        num_slots: int = 0,
        device: torch.device = CPU,
    ) -> None:
        self.shape = shape
        self.slot_bytes = slot_bytes(shape, linears, dtype)
        self.num_slots = num_slots or min(_MAX_SLOTS, budget_bytes // self.slot_bytes)
        self.sites: dict[int, Site] = {}
        self._linears = linears
        changed = shape.changed(linears)
        found = {
            index: kernels.low_rank(_shape_of(linears[index][1], names, shape.rank), dtype)
            for index, names in changed.items()
        }
        alignment = _ALIGNMENT_BYTES // dtype.itemsize
        stride = ceil_div(sum(kernel.size for kernel in found.values()), alignment) * alignment
        spans = dict(zip(found, _spans([kernel.size for kernel in found.values()]), strict=True))
        self._spans = spans  # the numbers of each site within a slot
        self._memory: _SlotMemory | _DeviceMemory
        if device == CPU:
            self._memory = _SlotMemory(self.num_slots, stride, dtype)
        else:
            self._memory = _DeviceMemory(self.num_slots, stride, dtype, device, list(spans.values()))
        for number, (index, kernel) in enumerate(found.items()):
            memory = self._memory.of_site(number, spans[index])
            self.sites[index] = Site(linears[index][1], changed[index], kernel, memory)
        self._free = list(range(self.num_slots - 1, -1, -1))
        self.num_used = 0

    @property
    def is_full(self) -> bool:
        return not self._free

    def take(self) -> int:
        """Return an empty slot, filled with zeros."""
        self._memory.take(self._free[-1])
        self.num_used += 1
        return self._free.pop()

    def write(self, slot: int, matrices: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Fill a slot: module -> (a, b) of the whole model, in any floating-point type. Stores this rank's part."""
        for index, site in self.sites.items():
            prefix, linear = self._linears[index]
            memory = self._memory.of_slot(slot)[self._spans[index]]
            for name in site.names:
                site.write(memory, name, *linear.own_low_rank(name, *matrices[prefix + name]))
        self._memory.finish()

    def read(self, slot: int) -> torch.Tensor:
        """Return all values of a slot, in the layout of the kernels."""
        return self._memory.of_slot(slot)

    def free(self, slot: int) -> None:
        """Clear a slot that is not used any more."""
        self._memory.clear(slot)
        self.num_used -= 1
        self._free.append(slot)


class _SlotMemory:
    """A tensor [S, width], zero where nothing was written. Pages are allocated when written."""

    def __init__(self, num_slots: int, width: int, dtype: torch.dtype) -> None:
        self._slot_bytes = width * dtype.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._memory = mmap.mmap(-1, num_slots * self._slot_bytes, flags=flags)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # not supported by every kernel
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self.data = torch.frombuffer(self._memory, dtype=dtype).view(num_slots, width)

    def of_site(self, _number: int, span: slice) -> torch.Tensor:
        """Return a site's numbers in all slots, [S, size]."""
        return self.data[:, span]

    def of_slot(self, slot: int) -> torch.Tensor:
        return self.data[slot]

    def take(self, slot: int) -> None:
        """Do nothing: pages are allocated when written."""

    def finish(self) -> None:
        """Do nothing: writes are complete."""

    def clear(self, slot: int) -> None:
        """Zero a slot. Whole pages return to the operating system."""
        first, last = slot * self._slot_bytes, (slot + 1) * self._slot_bytes
        first_page, last_page = ceil_div(first, mmap.PAGESIZE) * mmap.PAGESIZE, last // mmap.PAGESIZE * mmap.PAGESIZE
        if first_page >= last_page:
            self._bytes[first:last].zero_()
            return
        self._bytes[first:first_page].zero_()
        self._bytes[last_page:last].zero_()
        self._memory.madvise(mmap.MADV_DONTNEED, first_page, last_page - first_page)


class _DeviceMemory:
    """Slots in a device's memory, allocated one by one: pools of different shapes share one budget."""

    def __init__(
        self, num_slots: int, width: int, dtype: torch.dtype, device: torch.device, spans: Sequence[slice]
    ) -> None:
        self._width, self._dtype, self._device = width, dtype, device
        self._starts = torch.tensor([span.start * dtype.itemsize for span in spans], device=device)  # bytes
        num_columns = ceil_div(num_slots, 2) * 2  # aligns each site's addresses to 16 bytes
        self._addresses = torch.zeros(len(spans), num_columns, dtype=torch.int64, device=device)
        self._slots: dict[int, torch.Tensor] = {}

    def of_site(self, number: int, _span: slice) -> torch.Tensor:
        """Return the addresses of a site's numbers in all slots, int64 [S]."""
        return self._addresses[number]

    def of_slot(self, slot: int) -> torch.Tensor:
        return self._slots[slot]

    def take(self, slot: int) -> None:
        """Allocate a slot of zeros. Raises torch.OutOfMemoryError."""
        self._slots[slot] = torch.zeros(self._width, dtype=self._dtype, device=self._device)
        self._addresses[:, slot].copy_(self._starts + _address(self._slots[slot]))

    def finish(self) -> None:
        """Wait until writes are complete: steps may run on another stream."""
        torch.cuda.current_stream(self._device).synchronize()

    def clear(self, slot: int) -> None:
        del self._slots[slot]


def _address(x: torch.Tensor) -> int:
    return x.data_ptr()


def _spans(sizes: Sequence[int]) -> list[slice]:
    """Return the ranges of sites of these sizes, one after the other."""
    ends = list(itertools.accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def slot_bytes(shape: AdapterShape, linears: Linears, dtype: torch.dtype) -> int:
    """Return the bytes of one adapter of a shape."""
    num_elements = 0
    for index, names in shape.changed(linears).items():
        linear = linears[index][1]
        num_elements += shape.rank * sum(linear.shape[1] + linear.parts[name] for name in names)
    return num_elements * dtype.itemsize


def _shape_of(linear: Linear, names: Sequence[str], rank: int) -> LowRankShape:
    parts = tuple((first := _first_output(linear, name), first + linear.parts[name]) for name in names)
    return LowRankShape(linear.shape[1], rank, parts)


def _first_output(linear: Linear, name: str) -> int:
    """Return the index of a part's first output."""
    names = list(linear.parts)
    return sum(linear.parts[each] for each in names[: names.index(name)])


def _order_within(linear: Linear, name: str) -> torch.Tensor | None:
    """Return the order in which the map stores the outputs of a part; None if it is unchanged."""
    if linear.order is None:
        return None
    first = _first_output(linear, name)
    return linear.order[first : first + linear.parts[name]] - first
