"""A part of a parameter for one of several ranks, read without the rest where possible.

Knows neither ranks nor layers. Formats that support partial reads have `narrowed`; for others the whole parameter is
expanded and cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from engine.checkpoints.stored import Files, Source, StoredTensor

Span = tuple[int, int]  # first, last + 1


@dataclass(frozen=True)
class Cut:
    """The `spans` of dimension `dim`, concatenated; `total` is the dimension's size in the checkpoint."""

    dim: int
    spans: tuple[Span, ...]
    total: int

    @property
    def size(self) -> int:
        """Size of the dimension after the cut."""
        return sum(last - first for first, last in self.spans)

    def is_of_units(self, size: int) -> bool:
        """Return True if each span starts and ends at a multiple of `size`."""
        return all(edge % size == 0 for span in self.spans for edge in span)

    def of_units(self, size: int) -> Cut:
        """Return the same cut of a dimension with one number per unit."""
        return Cut(self.dim, tuple((first // size, last // size) for first, last in self.spans), self.total // size)

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Apply the cut to a tensor."""
        return torch.cat([whole.narrow(self.dim, first, last - first) for first, last in self.spans], self.dim)


@dataclass(frozen=True, eq=False)
class Part:
    """A destination for a cut of a parameter. `tensor` has the cut's size, `shape` is that of the whole."""

    tensor: torch.Tensor
    cut: Cut

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.tensor.shape)
        shape[self.cut.dim] = self.cut.total
        return tuple(shape)

    def pairs(self, source: Source) -> Iterator[tuple[Source, torch.Tensor]]:
        """Yield each span as a source, and its destination."""
        dim, at = self.cut.dim, 0
        for first, last in self.cut.spans:
            yield narrowed(source, dim, first, last), self.tensor.narrow(dim, at, last - first)
            at += last - first


Destination = torch.Tensor | Part


def part_of(tensor: torch.Tensor, cut: Cut | None) -> Destination:
    """Return `tensor` as a destination for a cut; for the whole parameter if `cut` is None."""
    return tensor if cut is None else Part(tensor, cut)


def narrowed(source: Source, dim: int, first: int, last: int) -> Source:
    """The range [first, last) of dimension `dim` as a parameter of its own. Reads nothing."""
    narrow = getattr(source, "narrowed", None)
    found: Source | None = None if narrow is None else narrow(dim, first, last)
    return _Expanded(source, dim, first, last) if found is None else found


@dataclass(frozen=True)
class _Expanded:
    """A range of a parameter that can only be read whole. One thread at a time holds all of it."""

    source: Source
    dim: int
    first: int
    last: int

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.source.shape)
        shape[self.dim] = self.last - self.first
        return tuple(shape)

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return self.source.parts

    @property
    def kind(self) -> str:
        return self.source.kind

    @property
    def is_quantized(self) -> bool:
        return self.source.is_quantized

    def check(self) -> None:
        self.source.check()

    def pieces(self) -> Iterator[Span]:
        yield 0, 1

    def fill(self, files: Files, destination: torch.Tensor, _first: int, _last: int) -> None:
        whole = torch.empty(self.source.shape, dtype=destination.dtype)
        for first, last in self.source.pieces():
            self.source.fill(files, whole, first, last)
        destination.copy_(whole.narrow(self.dim, self.first, self.last - self.first))
