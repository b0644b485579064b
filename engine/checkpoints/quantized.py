"""QuantizedTensor: a matrix of 4-bit or 8-bit levels with scales per group, independent of the checkpoint's format.

weight[o, i] = (level[o, i] - zero[o, g]) × scale[o, g] + offset[o, g], where g is the group of input i. A layer
computes with the packed levels or dequantizes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch

from engine.checkpoints.shard_slice import ShardSlice


@dataclass(frozen=True)
class PackedForm:
    """The packed form of a matrix, read from the checkpoint's headers. Kernels use it to decide whether they support
    the matrix.

    `group_size` inputs share a scale. `is_symmetric` is True if groups have neither zeros nor offsets.
    `is_input_quantized` is True if the weights are meant for 8-bit inputs. `is_float`: 8-bit floats (e4m3) take the
    place of levels.
    """

    bits: int
    group_size: int
    is_symmetric: bool
    is_input_quantized: bool = False
    has_offsets: bool = False
    is_float: bool = False


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """`packed` is uint8 [out, in × bits / 8]; of a byte's two 4-bit levels, the even input is the low half.

    `scales` is float32 [out, groups]; `zeros` is uint8 [out, groups], or None if every zero is 2^(bits - 1);
    `offsets` is float32 [out, groups], or None if every offset is 0. Input i is in group i // group_size, or in
    `groups[i]` (int64 [in]) if the checkpoint reorders inputs. `is_input_quantized` and `is_float` are as in
    `PackedForm`; 8-bit floats have one group, and no zeros or offsets.
    """

    bits: int
    packed: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    group_size: int
    groups: torch.Tensor | None = None
    is_input_quantized: bool = False
    offsets: torch.Tensor | None = None
    is_float: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        num_out, num_bytes = self.packed.shape
        return num_out, num_bytes * 8 // self.bits

    @property
    def form(self) -> PackedForm:
        has_offsets = self.offsets is not None
        is_symmetric = self.zeros is None and not has_offsets
        return PackedForm(self.bits, self.group_size, is_symmetric, self.is_input_quantized, has_offsets, self.is_float)

    def levels(self) -> torch.Tensor:
        """Return the levels as uint8 [out, in]."""
        return self.packed if self.bits == 8 else unpack_halves(self.packed)

    def centered_offsets(self) -> torch.Tensor | None:
        """Return the offsets if levels are counted from 2^(bits - 1): float32 [out, groups], None if all are 0."""
        if self.zeros is None:
            return self.offsets
        shifted = ((1 << (self.bits - 1)) - self.zeros.float()) * self.scales
        return shifted if self.offsets is None else shifted + self.offsets

    def reordered(self, order: torch.Tensor) -> QuantizedTensor:
        """Return the matrix whose output i is this matrix's output order[i]."""
        return self._with_parts(self.packed[order], lambda values: values[order])

    def part(self, cut: ShardSlice) -> QuantizedTensor:
        """Return the slice `cut`. A slice of inputs begins and ends at group boundaries, or there is one group."""
        if cut.dim == 0:
            return self._with_parts(cut.of(self.packed), cut.of)
        packed = cut.of_units(8 // self.bits).of(self.packed)
        if self.group_size == cut.total:
            return replace(self, packed=packed, group_size=cut.size)
        return self._with_parts(packed, cut.of_units(self.group_size).of)

    def _with_parts(self, packed: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor]) -> QuantizedTensor:
        """Return the matrix of other levels and of a part of all numbers per group."""
        zeros = None if self.zeros is None else part(self.zeros)
        offsets = None if self.offsets is None else part(self.offsets)
        return replace(self, packed=packed, scales=part(self.scales), zeros=zeros, offsets=offsets)

    def moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> QuantizedTensor:
        """Return the matrix with each of its tensors replaced by `move` of it."""
        parts = ("packed", "scales", "zeros", "groups", "offsets")
        found: dict[str, Any] = {name: getattr(self, name) for name in parts}
        return replace(self, **{name: move(part) for name, part in found.items() if part is not None})

    def converted(self, form: PackedForm) -> QuantizedTensor:
        """Return the same weights in a form from `common_form`."""
        if self.form == form:
            return self
        levels = self.levels() + ((1 << (form.bits - 1)) - (1 << (self.bits - 1)))
        repeats = self.group_size // form.group_size
        offsets = None
        if form.has_offsets:
            own = torch.zeros_like(self.scales) if self.offsets is None else self.offsets
            offsets = own.repeat_interleave(repeats, 1)
        scales = self.scales.repeat_interleave(repeats, 1)
        changed = quantized(levels, form.bits, scales, None, form.group_size, None)
        return replace(changed, is_input_quantized=self.is_input_quantized, offsets=offsets)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights [out, in], computed in float32 and rounded once."""
        if self.is_float:
            return (self.packed.view(torch.float8_e4m3fn).float() * self.scales).to(dtype)
        middle = torch.full((1, 1), 1 << (self.bits - 1), device=self.packed.device)
        zeros = middle if self.zeros is None else self.zeros
        values = dequantize_levels(self.levels(), self.scales, zeros, self.group_size, self.groups)
        if self.offsets is not None:
            values.unflatten(1, (-1, self.group_size)).add_(self.offsets.unsqueeze(-1))
        return values.to(dtype)


class PackedSlot:
    """Destination for a matrix of `shape` that stays packed, or for its slice `cut`."""

    def __init__(self, shape: tuple[int, int], cut: ShardSlice | None = None) -> None:
        self.shape, self._cut = shape, cut
        self.matrix: QuantizedTensor

    def put(self, whole: QuantizedTensor, move: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        """Keep the slice of a matrix. `move` copies a tensor to the device, if the host does not compute."""
        part = whole if self._cut is None else whole.part(self._cut)
        self.matrix = part if move is None else part.moved(move)


def common_form(forms: Collection[PackedForm]) -> PackedForm | None:
    """Return a form that matrices of all these forms can be converted to exactly, or None if there is none.

    Matrices with scales and offsets become 8-bit matrices; their groups divide into smaller ones.
    """
    first, *others = set(forms)
    if not others:
        return first
    if any(form.is_float for form in forms):
        return None
    has_zeros = any(not form.is_symmetric and not form.has_offsets for form in forms)
    if has_zeros or any(form.is_input_quantized != first.is_input_quantized for form in others):
        return None
    has_offsets = any(form.has_offsets for form in forms)
    group_size = math.gcd(*(form.group_size for form in forms))
    return PackedForm(8, group_size, not has_offsets, first.is_input_quantized, has_offsets)


def joined(matrices: list[QuantizedTensor]) -> QuantizedTensor:
    """Concatenate the outputs of matrices that have a common form and no reordered inputs."""
    form = common_form([each.form for each in matrices])
    assert form is not None
    assert all(each.groups is None for each in matrices)
    matrices = [each.converted(form) for each in matrices]

    def all_of(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
        found = [part for part in parts if part is not None]
        return torch.cat(found) if found else None

    return replace(
        matrices[0],
        packed=torch.cat([each.packed for each in matrices]),
        scales=torch.cat([each.scales for each in matrices]),
        zeros=all_of([each.zeros for each in matrices]),
        offsets=all_of([each.offsets for each in matrices]),
    )


def dequantize_levels(
    levels: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_size: int, groups: torch.Tensor | None
) -> torch.Tensor:
    """Return (level - zero) × scale as float32 [out, in]. Scales are [out, groups]; zeros too, or [1, 1].

    Levels and zeros are small integers, so only the product is rounded.
    """
    num_in = levels.shape[1]
    values = levels.float()
    if groups is None and num_in % group_size == 0:
        grouped = values.unflatten(1, (-1, group_size))  # [out, groups, size]
        grouped.sub_(zeros.unsqueeze(-1)).mul_(scales.unsqueeze(-1))
        return values
    groups = torch.arange(num_in) // group_size if groups is None else groups
    values.sub_(zeros[:, groups] if zeros.shape[1] > 1 else zeros)
    return values.mul_(scales[:, groups])


def unpack_halves(packed: torch.Tensor) -> torch.Tensor:
    """Return uint8 [rows, n] as [rows, 2 n], the low half of each byte first."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(1)


def quantized(
    levels: torch.Tensor,
    bits: int,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    group_size: int,
    groups: torch.Tensor | None,
) -> QuantizedTensor:
    """Pack uint8 levels [out, in]. 4-bit levels of an odd number of inputs do not fill bytes and take 8 bits each."""
    if bits == 4 and levels.shape[1] % 2 == 0:
        pairs = levels.unflatten(1, (-1, 2))
        return QuantizedTensor(4, pairs[..., 0] | pairs[..., 1] << 4, scales, zeros, group_size, groups)
    if bits != 8 and zeros is None:
        zeros = torch.full(scales.shape, 1 << (bits - 1), dtype=torch.uint8)
    return QuantizedTensor(8, levels.contiguous(), scales, zeros, group_size, groups)
