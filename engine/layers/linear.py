"""Linear maps, several of one input fused into one matrix. Knows names of checkpoint parts, not who uses the result."""

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

    `parts` maps a checkpoint's name to its number of outputs, `cuts` to what of it is here if that is not all. Call
    `bind` once the weights are in place; `forward` exists only then. A weight may stay packed as it is stored, from
    `keep_packed` on.
    """

    forward: Operator
    is_packed = False  # whether the weight stayed so, once it is bound

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
        self._slots: list[PackedSlot] = []  # of each part, where the weight stays packed
        self.names: tuple[str, ...] = ()  # of the weights of all parts in the checkpoint, once `destinations` was asked

    def destinations(self, prefix: str) -> Iterator[tuple[str, Destination]]:
        """Checkpoint name and the slice it fills, for every part; where the weight stays packed, of biases only."""
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
        """(in, out) of each part as the checkpoint has it."""
        num_in, shapes = self.shape[1], {}
        for name, num_out in self.parts.items():
            cut = self._cuts.get(name)
            sizes = {1: num_in, 0: num_out} if cut is None else {1: num_in, 0: num_out, cut.dim: cut.total}
            shapes[name] = (sizes[1], sizes[0])
        return shapes

    def own_form(self, form: PackedForm) -> PackedForm | None:
        """How what is here of a weight in this form is packed; None where a group of inputs would be cut in two."""
        for cut in self._cuts.values():
            if cut is None or cut.dim == 0:
                continue
            if form.group_size == cut.total and cut.is_of_units(8 // form.bits):
                return replace(form, group_size=cut.size)
            if not cut.is_of_units(form.group_size):
                return None
        return form

    def own_low_rank(self, name: str, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of what is added to a whole part, a [r, in] and b [out, r], that which is added to what is here of it."""
        cut = self._cuts.get(name)
        if cut is None:
            return a, b
        return (a, cut.of(b)) if cut.dim == 0 else (cut.of(a), b)

    def keep_packed(self) -> dict[str, PackedSlot]:
        """Have the weight loaded as it is packed: its parts by name, and where each goes."""
        shapes = self.whole_shapes.items()
        self._slots = [PackedSlot((num_out, num_in), self._cuts.get(name)) for name, (num_in, num_out) in shapes]
        self._weight = self._weight.new_empty(0)
        return dict(zip(self.names, self._slots, strict=True))

    def reorder(self, order: torch.Tensor) -> None:
        """Output i becomes what output order[i] was. Before `bind`."""
        self.order = order if self.order is None else self.order[order]
        order = order.to(self._weight.device)
        if self._slots:
            self._join().matrix = self._join().matrix.reordered(order)
        else:
            self._weight = self._weight.index_select(0, order)
        if self._bias is not None:
            self._bias = self._bias.index_select(0, order)

    def take(self) -> torch.Tensor:
        """The weight [out, C], for one who binds it otherwise; this layer then no longer holds it."""
        if self._slots:
            self._weight, self._slots = self._join().matrix.dequantize(self._weight.dtype), []
        weight, self._weight = self._weight, self._weight.new_empty(0)
        return weight

    def with_forward(self, forward: Operator) -> Linear:
        """A bound layer's twin that runs through `forward`."""
        made = copy.copy(self)
        made.forward = forward
        return made

    def bind(self, kernels: Kernels) -> None:
        """Hand the weight to the device's operator; this layer then no longer holds it."""
        self.is_packed = bool(self._slots)
        if self._slots:
            self.forward = kernels.packed_linear(self._join().matrix, self._bias, self._weight.dtype)
            self._slots = []
        else:
            self.forward = kernels.linear(self.take(), self._bias)
        self._bias = None

    def _join(self) -> PackedSlot:
        """One slot for all parts."""
        if len(self._slots) > 1:
            slot = PackedSlot(self.shape)
            slot.matrix = joined([each.matrix for each in self._slots])
            self._slots = [slot]
        return self._slots[0]


def with_linears(part: T, change: Callable[[Linear], Linear]) -> T:
    """A copy of a bound part of a layer that shares its weights and runs through other linear maps, at any depth.

    A part that keeps operators of its linear maps takes them anew in `link`.
    """
    made = copy.copy(part)
    for name, value in vars(part).items():
        if isinstance(value, Linear):
            setattr(made, name, change(value))
        elif hasattr(value, "bind"):
            setattr(made, name, with_linears(value, change))
    if hasattr(made, "link"):
        made.link()
    return made
