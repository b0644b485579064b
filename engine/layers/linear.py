"""Linear maps; several maps of one input are fused into one matrix. Knows names of checkpoint parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import torch

from engine.checkpoints.quantized import PackedForm, PackedSlot, joined
from engine.checkpoints.shard_slice import Destination, ShardSlice, destination_for
from engine.kernels.interface import Operator
from engine.kernels.reference import Kernels

NO_CUTS: Mapping[str, ShardSlice | None] = {}

T = TypeVar("T")


class Linear:
    """x [T, C] -> x @ weight.T + bias, where the rows of `weight` [out, C] are those of each part in order.

    `parts` maps a checkpoint's name to its number of outputs, `cuts` to this rank's part of it. Call `bind` when the
    weights are loaded; `forward` exists only afterwards. After `keep_packed`, the weight stays packed as stored.
    """

    forward: Operator
    is_packed = False  # True if the weight stays packed after `bind`
    reads_float8 = False  # True if `forward` also takes `Float8Rows`, known after `bind`

    def __init__(
        self,
        parts: Mapping[str, int],
        num_in: int,
        has_bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        cuts: Mapping[str, ShardSlice | None] = NO_CUTS,
    ) -> None:
        self.parts, self._cuts = parts, cuts
        self.order: torch.Tensor | None = None  # [out], see `reorder`
        self.shape = (sum(parts.values()), num_in)
        self._weight = torch.empty(self.shape, dtype=dtype, device=device)  # [out, C]
        self._bias = torch.empty(self.shape[0], dtype=dtype, device=device) if has_bias else None  # [out]
        self._slots: list[PackedSlot] = []  # one per part, if the weight stays packed
        self.names: tuple[str, ...] = ()  # checkpoint names of the weights of all parts, set by `destinations`

    def destinations(self, prefix: str) -> Iterator[tuple[str, Destination]]:
        """Yield checkpoint name and destination slice of every part; only of biases if the weight stays packed."""
        first, self.names = 0, tuple(f"{prefix}{name}.weight" for name in self.parts)
        for name, num_out in self.parts.items():
            rows, cut = slice(first, first + num_out), self._cuts.get(name)
            if not self._slots:
                yield f"{prefix}{name}.weight", destination_for(self._weight[rows], cut)
            if self._bias is not None:
                yield f"{prefix}{name}.bias", destination_for(self._bias[rows], cut if cut and cut.dim == 0 else None)
            first += num_out

    @property
    def whole_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (in, out) of each part as stored in the checkpoint."""
        num_in, shapes = self.shape[1], {}
        for name, num_out in self.parts.items():
            cut = self._cuts.get(name)
            sizes = {1: num_in, 0: num_out} if cut is None else {1: num_in, 0: num_out, cut.dim: cut.total}
            shapes[name] = (sizes[1], sizes[0])
        return shapes

    def own_form(self, form: PackedForm) -> PackedForm | None:
        """Return the packed form of this rank's part of a weight, or None if a group of inputs would be split."""
        for cut in self._cuts.values():
            if cut is None or cut.dim == 0:
                continue
            if form.group_size == cut.total and cut.is_of_units(8 // form.bits):
                return replace(form, group_size=cut.size)
            if not cut.is_of_units(form.group_size):
                return None
        return form

    def own_low_rank(self, name: str, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's part of a low-rank update a [r, in], b [out, r] of a whole part."""
        cut = self._cuts.get(name)
        if cut is None:
            return a, b
        return (a, cut.of(b)) if cut.dim == 0 else (cut.of(a), b)

    def keep_packed(self) -> dict[str, PackedSlot]:
        """Keep the weight packed; return the slot of each part by name."""
        shapes = self.whole_shapes.items()
        self._slots = [PackedSlot((num_out, num_in), self._cuts.get(name)) for name, (num_in, num_out) in shapes]
        self._weight = self._weight.new_empty(0)
        return dict(zip(self.names, self._slots, strict=True))

    def reorder(self, order: torch.Tensor) -> None:
        """Permute the outputs: output i becomes the previous output order[i]. Call before `bind`."""
        self.order = order if self.order is None else self.order[order]
        order = order.to(self._weight.device)
        if self._slots:
            self._join().matrix = self._join().matrix.reordered(order)
        else:
            self._weight = self._weight.index_select(0, order)
        if self._bias is not None:
            self._bias = self._bias.index_select(0, order)

    def take(self) -> torch.Tensor:
        """Return the weight [out, C] for a caller that binds it differently; this layer no longer holds it."""
        if self._slots:
            self._weight, self._slots = self._join().matrix.dequantize(self._weight.dtype), []
        weight, self._weight = self._weight, self._weight.new_empty(0)
        return weight

    def with_forward(self, forward: Operator) -> Linear:
        """Return a copy of a bound layer that uses `forward`."""
        copied = copy.copy(self)
        copied.forward = forward
        return copied

    def bind(self, kernels: Kernels) -> None:
        """Pass the weight to the device's operator; this layer no longer holds it."""
        self.is_packed = bool(self._slots)
        if self._slots:
            matrix = self._join().matrix
            self.forward = kernels.packed_linear(matrix, self._bias, self._weight.dtype)
            self.reads_float8 = matrix.rounds_to_float8
            self._slots = []
        else:
            self.forward = kernels.linear(self.take(), self._bias)
        self._bias = None

    def _join(self) -> PackedSlot:
        """Return one slot for all parts."""
        if len(self._slots) > 1:
            slot = PackedSlot(self.shape)
            slot.matrix = joined([each.matrix for each in self._slots])
            self._slots = [slot]
        return self._slots[0]


def with_linears(part: T, change: Callable[[Linear], Linear]) -> T:
    """Return a copy of a bound part of a layer that shares its weights and uses other linear maps, at any depth.

    A part that caches operators of its linear maps updates them in `link`.
    """
    copied = copy.copy(part)
    for name, value in vars(part).items():
        if isinstance(value, Linear):
            setattr(copied, name, change(value))
        elif hasattr(value, "bind"):
            setattr(copied, name, with_linears(value, change))
    if hasattr(copied, "link"):
        copied.link()
    return copied
