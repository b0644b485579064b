"""Integer weights as packed by GPTQ, AWQ and compressed-tensors: levels in 32-bit words, scales and zeros per group.

| | words | levels of a word | zeros |
|---|---|---|---|
| GPTQ | [in / n, out] | consecutive inputs, lowest bits first | [groups, out / n], stored minus one before version 2 |
| AWQ | [in, out / 8] | outputs 0 2 4 6 1 3 5 7 | [groups, out / 8], the same order |
| compressed-tensors | [out, in / n] | consecutive inputs, lowest bits first | [out / n, groups], or none |

n is 32 / bits. Without stored zeros, every zero is 2^(bits - 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from engine.arrays import ceil_div
from engine.checkpoints.quantized import PackedForm, QuantizedTensor, dequantize_levels, quantized, unpack_halves
from engine.checkpoints.stored import (
    PIECE_ELEMENTS,
    Files,
    StoredTensor,
    WeightsError,
    ranges,
    require_finite,
)

_ONES = {4: 0x11111111, 8: 0x01010101}  # a word whose levels are all 1
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # the place of output 0, 1, … of eight in a word


@dataclass(frozen=True)
class PackedByInput:
    """GPTQ and AWQ: stored rows are inputs, so a piece is a range of columns of the matrix.

    `order` is the group of each input (GPTQ's `g_idx`) or None. `zero_shift` was subtracted from every stored zero.
    """

    name: str
    method: str
    bits: int
    words: StoredTensor
    scales: StoredTensor  # [groups, out]
    zeros: StoredTensor  # [groups, out × bits / 32]
    order: StoredTensor | None
    group_size: int  # 0 for all inputs
    zero_shift: int

    @property
    def shape(self) -> tuple[int, ...]:
        num_rows, num_columns = self.words.shape
        return (num_columns * self._per_word, num_rows) if self._is_awq else (num_columns, num_rows * self._per_word)

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return self.words, self.scales, self.zeros, *((self.order,) if self.order else ())

    @property
    def kind(self) -> str:
        return f"{self.method} int{self.bits}"

    @property
    def is_quantized(self) -> bool:
        return True

    def check(self) -> None:
        _require_words(self.name, self.words, self.zeros)
        num_out, num_in = self.shape
        if self.scales.dtype not in ("F16", "BF16", "F32") or len(self.scales.shape) != 2:
            raise WeightsError(f"{self.scales.name} has type {self.scales.dtype} and shape {list(self.scales.shape)}")
        num_groups = self.scales.shape[0]
        group_size = self.group_size or max(num_in, 1)
        if num_groups != max(ceil_div(num_in, group_size), 1):
            raise WeightsError(f"{self.scales.name}: {num_groups} groups of {group_size} for {num_in} inputs")
        if self.scales.shape[1] != num_out or self.zeros.shape != (num_groups, ceil_div(num_out, self._per_word)):
            raise WeightsError(f"{self.name}: scales or zeros have shapes that do not fit {num_out} outputs")
        if self.order is not None and (self.order.dtype != "I32" or self.order.shape != (num_in,)):
            raise WeightsError(f"{self.order.name}: expected I32 of shape [{num_in}]")

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of inputs: whole words, and whole groups if a piece holds at least one."""
        num_out, num_in = self.shape
        step = max(PIECE_ELEMENTS // max(num_out, 1), 1)
        fits_group = 0 < self.group_size <= step and self.group_size % self._per_word == 0
        unit = self.group_size if fits_group else self._per_word
        return ranges(num_in, max(step // unit, 1) * unit)

    def fill(self, files: Files, destination: torch.Tensor, first: int, last: int) -> None:
        groups = self._groups(files, first, last)  # [inputs]
        low, high = int(groups.min()), int(groups.max()) + 1
        scales, zeros = self._scales_and_zeros(files, low, high)  # [out, groups]
        group_size = self._group_size_of(groups)
        levels = self._levels(files, first, last)  # [out, inputs]
        values = dequantize_levels(
            levels, scales, zeros, group_size, None if self._is_in_order(groups) else groups - low
        )
        require_finite(values, self.scales)
        destination[:, first:last].copy_(values)

    def read_quantized(self, files: Files) -> QuantizedTensor:
        """Return the whole matrix in the engine's packed form."""
        num_in = self.shape[1]
        groups = self._groups(files, 0, num_in)
        scales, zeros = self._scales_and_zeros(files, 0, self.scales.shape[0])
        order = None if self._is_in_order(groups) else groups
        levels = self._levels(files, 0, num_in)
        return quantized(levels, self.bits, scales, zeros, self.group_size or num_in, order)

    def packed_form(self, files: Files) -> PackedForm | None:
        """Return None if inputs are reordered or do not fill their groups."""
        num_in = self.shape[1]
        group_size = self.group_size or num_in
        if num_in % group_size or (self.order is not None and not self._is_in_order(self._groups(files, 0, num_in))):
            return None
        return PackedForm(self.bits, group_size, is_symmetric=False)

    @property
    def _is_awq(self) -> bool:
        return self.method == "AWQ"

    @property
    def _per_word(self) -> int:
        return 32 // self.bits

    def _groups(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Return the group of each input in a range, int64."""
        if self.order is None:
            return torch.arange(first, last) // (self.group_size or max(last, 1))
        groups = torch.from_numpy(files.read_rows(self.order, first, last)).long()
        if len(groups) and not 0 <= int(groups.min()) <= int(groups.max()) < self.scales.shape[0]:
            raise WeightsError(f"{self.order.name} names a group outside the {self.scales.shape[0]} that exist")
        return groups

    def _is_in_order(self, groups: torch.Tensor) -> bool:
        """Return True if the groups are contiguous and full, except for the last."""
        expected = torch.arange(len(groups)) // self._group_size_of(groups)
        return torch.equal(groups - groups[0], expected)

    def _group_size_of(self, groups: torch.Tensor) -> int:
        return min(self.group_size or self.shape[1], len(groups))

    def _scales_and_zeros(self, files: Files, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return float32 scales and uint8 zeros [out, groups]."""
        scales = files.read_reals(self.scales, low, high)
        words = files.read_rows(self.zeros, low, high)
        if self.zero_shift:  # added to whole words because a stored zero of 0 borrowed from the next level
            words = words.view(np.uint32) + np.uint32(self.zero_shift * _ONES[self.bits])
        zeros = _unpack(words, self.bits, _AWQ_PLACES if self._is_awq else None)[:, : scales.shape[1]]
        return scales.t().contiguous(), zeros.t().contiguous()

    def _levels(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Return the levels as uint8 [out, inputs]."""
        if self._is_awq:
            words = files.read_rows(self.words, first, last)
            return _unpack(words, self.bits, _AWQ_PLACES).t().contiguous()
        words = files.read_rows(self.words, first // self._per_word, last // self._per_word)  # [inputs / n, out]
        return _unpack(np.ascontiguousarray(words.T), self.bits)


@dataclass(frozen=True)
class PackedByOutput:
    """compressed-tensors: stored rows are outputs. `words` are 32-bit words, or plain 8-bit integers.

    `zeros` is None if every zero is 2^(bits - 1). `order` is as for GPTQ.
    """

    name: str
    bits: int
    words: StoredTensor
    scales: StoredTensor  # [out, groups], or one number
    zeros: StoredTensor | None  # [out × bits / 32, groups], or [out, groups] of plain integers
    order: StoredTensor | None
    num_in: int
    group_size: int  # 0 for all inputs
    is_input_quantized: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.words.shape[0], self.num_in

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return self.words, self.scales, *(part for part in (self.zeros, self.order) if part)

    @property
    def kind(self) -> str:
        return f"compressed-tensors int{self.bits}"

    @property
    def is_quantized(self) -> bool:
        return True

    def check(self) -> None:
        num_out, num_in = self.shape
        per_row = num_in if self._is_plain else ceil_div(num_in * self.bits, 32)
        if len(self.words.shape) != 2 or self.words.shape[1] != per_row or self.words.dtype not in ("I32", "I8"):
            raise WeightsError(f"{self.words.name}: shape {list(self.words.shape)} for {self.bits} bits × {num_in}")
        num_groups = self._num_groups
        if self.scales.dtype not in ("F16", "BF16", "F32") or not self._has_shape(self.scales, num_out, num_groups):
            raise WeightsError(
                f"{self.scales.name}: {self.scales.dtype} {list(self.scales.shape)}, {num_groups} groups"
            )
        if self.zeros is not None:
            rows = num_out if self.zeros.dtype == "I8" else ceil_div(num_out * self.bits, 32)
            if self.zeros.dtype not in ("I8", "I32") or not self._has_shape(self.zeros, rows, num_groups):
                raise WeightsError(f"{self.zeros.name}: {self.zeros.dtype} {list(self.zeros.shape)}")
        if self.order is not None and (self.order.dtype != "I32" or self.order.shape != (num_in,)):
            raise WeightsError(f"{self.order.name}: expected I32 of shape [{num_in}]")

    def pieces(self) -> Iterator[tuple[int, int]]:
        per_word = 32 // self.bits  # a word holds the zeros of this many outputs
        step = max(PIECE_ELEMENTS // max(self.num_in, 1), 1)
        return ranges(self.shape[0], ceil_div(step, per_word) * per_word)

    def fill(self, files: Files, destination: torch.Tensor, first: int, last: int) -> None:
        values = self._read(files, first, last).dequantize(torch.float32)
        require_finite(values, self.scales)
        destination[first:last].copy_(values)

    def read_quantized(self, files: Files) -> QuantizedTensor:
        """Return the whole matrix in the engine's packed form."""
        return replace(self._read(files, 0, self.shape[0]), is_input_quantized=self.is_input_quantized)

    def packed_form(self, _files: Files) -> PackedForm | None:
        """Return None if inputs may be reordered or do not fill their groups."""
        group_size = self.group_size or self.num_in
        if self.order is not None or self.num_in % group_size:
            return None
        return PackedForm(self.bits, group_size, self.zeros is None, self.is_input_quantized)

    @property
    def _is_plain(self) -> bool:
        return self.words.dtype == "I8"

    @property
    def _num_groups(self) -> int:
        return ceil_div(self.num_in, self.group_size) if self.group_size else 1

    def _has_shape(self, tensor: StoredTensor, num_rows: int, num_groups: int) -> bool:
        if num_groups == 1 and tensor.shape in ((), (1,), (num_rows,)):
            return True
        return tensor.shape == (num_rows, num_groups)

    def _read(self, files: Files, first: int, last: int) -> QuantizedTensor:
        """Read outputs [first, last); `first` is a multiple of the levels in a word."""
        num_rows, middle = last - first, 1 << (self.bits - 1)
        words = files.read_rows(self.words, first, last)
        if self._is_plain:
            levels = torch.from_numpy(words).view(torch.uint8) ^ 128  # signed integers become levels from 0 on
        else:
            levels = _unpack(words, self.bits)[:, : self.num_in]
        zeros = None
        if self.zeros is not None:
            zeros = self._zeros(files, first, last, middle)  # [rows, groups]
        if self.order is None:
            groups = None
        else:
            groups = torch.from_numpy(files.read_rows(self.order)).long()
            if not 0 <= int(groups.min()) <= int(groups.max()) < self._num_groups:
                raise WeightsError(f"{self.order.name} names a group outside the {self._num_groups} that exist")
        if self.scales.num_rows == self.shape[0]:
            scales = files.read_reals(self.scales, first, last).reshape(num_rows, -1)
        else:
            scales = files.read_reals(self.scales).reshape(1, 1).repeat(num_rows, 1)
        return quantized(levels, self.bits, scales, zeros, self.group_size or self.num_in, groups)

    def _zeros(self, files: Files, first: int, last: int, middle: int) -> torch.Tensor:
        """Return the zeros as uint8 [rows, groups]."""
        assert self.zeros is not None
        num_rows = last - first
        if self.zeros.dtype == "I8":
            if self.zeros.num_rows != self.shape[0]:
                first, last = 0, self.zeros.num_rows
            plain = torch.from_numpy(files.read_rows(self.zeros, first, last)).to(torch.int16) + middle
            return plain.reshape(-1, self._num_groups).to(torch.uint8).expand(num_rows, self._num_groups)
        per_word = 32 // self.bits
        words = files.read_rows(self.zeros, first // per_word, ceil_div(last, per_word)).reshape(-1, self._num_groups)
        return _unpack(words.T, self.bits)[:, :num_rows].t()


def _require_words(name: str, *tensors: StoredTensor) -> None:
    for tensor in tensors:
        if tensor.dtype != "I32" or len(tensor.shape) != 2:
            raise WeightsError(f"{name}: {tensor.name} has type {tensor.dtype} and shape {list(tensor.shape)}")


def _unpack(words: NDArray[np.generic], bits: int, places: tuple[int, ...] | None = None) -> torch.Tensor:
    """Return the uint8 levels [rows, n × 32 / bits] of int32 words [rows, n], lowest bits first or by `places`."""
    packed = torch.from_numpy(np.ascontiguousarray(words).reshape(-1).view(np.uint8)).reshape(len(words), -1)
    levels = packed if bits == 8 else unpack_halves(packed)
    return levels if places is None else levels.unflatten(1, (-1, len(places)))[:, :, list(places)].flatten(1)
