"""QuantizedTensor: a matrix of 4-bit or 8-bit levels with scales per group, independent of the checkpoint's format.

weight[o, i] = (level[o, i] - zero[o, g]) × scale[o, g], where g is the group of input i. A layer computes with the
packed levels or dequantizes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.checkpoints.shard_slice import ShardSlice


@dataclass(frozen=True)
class PackedForm:
    """How a checkpoint packs a matrix, known from its headers. Kernels decide by it whether they support the matrix.

    `group_size` inputs share a scale. `is_input_quantized` is True if the weights are meant for 8-bit inputs.
    """

    bits: int
    group_size: int
    is_symmetric: bool
    is_input_quantized: bool = False


@dataclass(frozen=True, eq=False)
class QuantizedTensor:
    """`packed` is uint8 [out, in × bits / 8]; of a byte's two 4-bit levels, the even input is the low half.

    `scales` is float32 [out, groups]; `zeros` is uint8 [out, groups], or None if every zero is 2^(bits - 1). Input i is
    in group i // group_size, or in `groups[i]` (int64 [in]) if the checkpoint reorders inputs. `is_input_quantized` is
    as in `PackedForm`.
    """

    bits: int
    packed: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    group_size: int
    groups: torch.Tensor | None = None
    is_input_quantized: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        num_out, num_bytes = self.packed.shape
        return num_out, num_bytes * 8 // self.bits

    @property
    def form(self) -> PackedForm:
        return PackedForm(self.bits, self.group_size, self.zeros is None, self.is_input_quantized)

    def levels(self) -> torch.Tensor:
        """Return the levels as uint8 [out, in]."""
        return self.packed if self.bits == 8 else unpack_halves(self.packed)

    def reordered(self, order: torch.Tensor) -> QuantizedTensor:
        """Return the matrix whose output i is this matrix's output order[i]."""
        zeros = None if self.zeros is None else self.zeros[order]
        return replace(self, packed=self.packed[order], scales=self.scales[order], zeros=zeros)

    def part(self, cut: ShardSlice) -> QuantizedTensor:
        """Return the slice `cut`. A slice of inputs begins and ends at group boundaries, or there is one group."""
        if cut.dim == 0:
            zeros = None if self.zeros is None else cut.of(self.zeros)
            return replace(self, packed=cut.of(self.packed), scales=cut.of(self.scales), zeros=zeros)
        packed = cut.of_units(8 // self.bits).of(self.packed)
        if self.group_size == cut.total:
            return replace(self, packed=packed, group_size=cut.size)
        of_groups = cut.of_units(self.group_size)
        zeros = None if self.zeros is None else of_groups.of(self.zeros)
        return replace(self, packed=packed, scales=of_groups.of(self.scales), zeros=zeros)

    def dequantize(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights [out, in], computed in float32 and rounded once."""
        zeros = torch.full((1, 1), 1 << (self.bits - 1)) if self.zeros is None else self.zeros
        return dequantize_levels(self.levels(), self.scales, zeros, self.group_size, self.groups).to(dtype)


class PackedSlot:
    """Destination for a matrix of `shape` that stays packed, or for its slice `cut`."""

    def __init__(self, shape: tuple[int, int], cut: ShardSlice | None = None) -> None:
        self.shape, self._cut = shape, cut
        self.matrix: QuantizedTensor

    def put(self, whole: QuantizedTensor) -> None:
        self.matrix = whole if self._cut is None else whole.part(self._cut)


def joined(matrices: list[QuantizedTensor]) -> QuantizedTensor:
    """Concatenate the outputs of matrices with equal bit width and group size and without reordered inputs."""
    first = matrices[0]
    if len(matrices) == 1:
        return first
    assert all((each.bits, each.group_size) == (first.bits, first.group_size) for each in matrices)
    assert all(each.groups is None and (each.zeros is None) == (first.zeros is None) for each in matrices)
    zeros = None if first.zeros is None else torch.cat([each.zeros for each in matrices if each.zeros is not None])
    packed, scales = torch.cat([each.packed for each in matrices]), torch.cat([each.scales for each in matrices])
    return replace(first, packed=packed, scales=scales, zeros=zeros)


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
