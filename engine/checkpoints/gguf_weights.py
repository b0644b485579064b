"""Map the tensors of a GGUF file to the parameters they were converted from.

GGUF has its own tensor names, stores all experts of a layer in one tensor, and changes some weights: rows of llama's
query and key projections are permuted, and gemma norms have 1 added. This module reverses these changes. The `gguf`
package dequantizes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gguf.constants import MODEL_ARCH_NAMES, GGMLQuantizationType
from gguf.quants import dequantize
from gguf.tensor_mapping import get_tensor_name_map

from engine.checkpoints.dense import Dense
from engine.checkpoints.gguf_blocks import PACKED_TYPES, round_to_8_bits, unpack_blocks
from engine.checkpoints.gguf_file import GgufFile, GgufTensor
from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.checkpoints.stored import (
    PIECE_ELEMENTS,
    Files,
    Source,
    StoredTensor,
    WeightsError,
    ranges,
    require_finite,
)

_PLAIN = ("F64", "F32", "F16", "BF16")
_SHIFTED_NORMS = ("gemma", "gemma2", "gemma3")  # stored with 1 added
_PERMUTED = ("llama", "granite", "smollm3")  # the rows of a rotary pair are adjacent in the file
_EXPERT = re.compile(r"experts\.(\d+)\.")
_MIXTRAL_PARTS = {".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}
# Rotary frequencies for readers that do not compute them from the config.
_UNUSED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True)
class GgufSource:
    """A parameter from `stored`, whose rows may be permuted and whose values may have `shift` added.

    `heads` is the number of heads with permuted rows, 0 if rows are in order.
    """

    name: str
    stored: StoredTensor
    shape: tuple[int, ...]
    heads: int = 0
    shift: float = 0.0

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return (self.stored,)

    @property
    def kind(self) -> str:
        return f"GGUF {self.stored.dtype}"

    @property
    def is_quantized(self) -> bool:
        return self.stored.dtype not in _PLAIN

    def check(self) -> None:
        if self.heads and (self.shape[0] % (2 * self.heads) or not self.shape):
            raise WeightsError(f"{self.name}: {self.shape[0]} rows do not divide into {self.heads} heads of row pairs")

    def narrowed(self, dim: int, first: int, last: int) -> GgufSource | None:
        if dim or self.heads or len(self.shape) < 2:
            return None
        return replace(self, stored=self.stored.rows(first, last), shape=(last - first, *self.shape[1:]))

    def pieces(self) -> Iterator[tuple[int, int]]:
        return ranges(self._num_rows, PIECE_ELEMENTS // self._width)

    def fill(self, files: Files, destination: torch.Tensor, first: int, last: int) -> None:
        values = self._values(files, first, last)
        require_finite(values, self.stored)
        if len(self.shape) == 1:
            destination.copy_(self._in_order(values.flatten(), torch.arange(self._width)))
        elif self.heads:
            destination.index_copy_(0, self._places(torch.arange(first, last)), values.to(destination.dtype))
        elif len(self.shape) == 2:
            destination[first:last].copy_(values)
        else:
            lead = math.prod(self.shape[1:-1])
            for index in range(first // lead, (last - 1) // lead + 1):
                start, stop = max(first, index * lead), min(last, (index + 1) * lead)
                rows = destination[index][start - index * lead : stop - index * lead]
                rows.copy_(values[start - first : stop - first].reshape(rows.shape))

    def read_quantized(self, files: Files) -> QuantizedTensor | None:
        """Return the packed matrix, or None if the tensor is no matrix of quantized numbers.

        Types of 4, 5, 6 and 8 bits keep their levels; other types are rounded to 8 bits per 32 inputs.
        """
        if self.packed_form(files) is None:
            return None
        num_out = self.shape[0]
        if self.stored.dtype in PACKED_TYPES:
            data = torch.from_numpy(files.read_bytes(self.stored, 0, self.stored.size_bytes))
            matrix = unpack_blocks(self.stored.dtype, data.view(num_out, -1))
        else:
            values = self._values(files, 0, num_out)
            require_finite(values, self.stored)
            matrix = round_to_8_bits(values)
        if not all(torch.isfinite(part).all() for part in (matrix.scales, matrix.offsets) if part is not None):
            raise WeightsError(f"{self.stored.path.name}: {self.stored.name} holds NaN or infinity")
        return matrix.reordered(torch.argsort(self._places(torch.arange(num_out)))) if self.heads else matrix

    def packed_form(self, _files: Files) -> PackedForm | None:
        if not self.is_quantized or len(self.shape) != 2 or self.shift or self.shape[1] % 32:
            return None
        return PACKED_TYPES.get(self.stored.dtype, PackedForm(8, 32, is_symmetric=True))

    @property
    def _width(self) -> int:
        return self.shape[-1]

    @property
    def _num_rows(self) -> int:
        return math.prod(self.shape[:-1])

    def _values(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Return the values as float32 [rows, width]."""
        row_bytes = self.stored.size_bytes // self._num_rows
        data = files.read_bytes(self.stored, first * row_bytes, (last - first) * row_bytes)
        kind = GGMLQuantizationType[self.stored.dtype]
        with np.errstate(all="ignore"):  # the caller finds and reports non-finite values
            try:
                values = dequantize(data.reshape(last - first, row_bytes), kind)
            except NotImplementedError:
                raise WeightsError(f"{self.stored.name} has unsupported type {self.stored.dtype}") from None
        return torch.from_numpy(np.ascontiguousarray(values, np.float32)).reshape(last - first, -1) - self.shift

    def _places(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the row of the parameter for each stored row: stored pairs have one row from each half of the head."""
        size = self.shape[0] // self.heads
        head, within = rows // size, rows % size
        return head * size + within % 2 * (size // 2) + within // 2

    def _in_order(self, values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return values[torch.argsort(self._places(rows))] if self.heads else values


class GgufWeights:
    """The parameters of one GGUF model, by their Hugging Face names."""

    def __init__(self, file: GgufFile) -> None:
        """Raises WeightsError if the `gguf` package does not know the architecture's tensor names."""
        self._file = file
        architecture = next((arch for arch, name in MODEL_ARCH_NAMES.items() if name == file.architecture), None)
        num_layers = file.value("block_count")
        if architecture is None or type(num_layers) is not int or not 0 < num_layers <= 1024:
            named = f"general.architecture={file.architecture[:50]!r}, block_count={str(num_layers)[:50]}"
            raise WeightsError(f"{file.path.name}: {named}: the tensor names of this architecture are not known")
        self._names = get_tensor_name_map(architecture, num_layers)
        self.stored = {name: _stored(tensor) for name, tensor in file.tensors.items()}

    def find(self, name: str) -> Source | None:
        """Return the parameter that the model family calls `name`, or None if the file does not have it."""
        expert = _EXPERT.search(name)
        whole = _EXPERT.sub("experts.", name) if expert else name
        gguf_name = self._find_name(whole)
        if gguf_name is None:
            return None
        stored = self.stored[gguf_name]
        if expert:
            stored = _slice(name, stored, int(expert[1]))
        if gguf_name.endswith("ffn_gate_inp_shexp.weight") and len(stored.shape) == 1:
            stored = replace(stored, shape=(1, *stored.shape))
        shift = 1.0 if self._file.architecture in _SHIFTED_NORMS and gguf_name.endswith("norm.weight") else 0.0
        heads = self._permuted_heads(gguf_name)
        if stored.dtype in _PLAIN and not heads and not shift:
            return Dense(name, stored)
        return GgufSource(name, stored, stored.shape, heads, shift)

    def is_unused(self, name: str) -> bool:
        """Return True if the engine does not need the tensor that the file calls `name`."""
        return name in _UNUSED or name.endswith((".rope_freqs.weight", ".attn_rot_embd"))

    def _find_name(self, name: str) -> str | None:
        for candidate in (name, _plain_mixture(name)):
            found = self._names.get_name(candidate, try_suffixes=(".weight", ".bias"))
            if found is not None and found in self.stored:
                return found
            # A parameter whose own name has no suffix has one in the file.
            for suffix in (".weight", ".bias"):
                if found is not None and f"{found}{suffix}" in self.stored:
                    return f"{found}{suffix}"
        return None

    def _permuted_heads(self, gguf_name: str) -> int:
        if self._file.architecture not in _PERMUTED:
            return 0
        if ".attn_q." in gguf_name:
            return _heads(self._file, "attention.head_count")
        if ".attn_k." in gguf_name:
            return _heads(self._file, "attention.head_count_kv", "attention.head_count")
        return 0


def _heads(file: GgufFile, *keys: str) -> int:
    value: Any = next((found for key in keys if (found := file.value(key)) is not None), None)
    if type(value) is not int or not 1 <= value <= 4096:
        raise WeightsError(f"{file.path.name}: {keys[0]}={str(value)[:50]}: expected an integer number of heads")
    return value


def _plain_mixture(name: str) -> str:
    """Replace Mixtral's names for the parts of a mixture of experts by the usual names."""
    name = name.replace(".block_sparse_moe.", ".mlp.")
    for part, usual in _MIXTRAL_PARTS.items():
        name = name.replace(part, usual)
    return name


def _stored(tensor: GgufTensor) -> StoredTensor:
    return StoredTensor(tensor.path, tensor.name, tensor.kind, tensor.shape, tensor.offset, tensor.size_bytes)


def _slice(name: str, stored: StoredTensor, index: int) -> StoredTensor:
    """Return one expert's part of a tensor that holds all experts."""
    if len(stored.shape) < 2 or not 0 <= index < stored.shape[0]:
        raise WeightsError(f"{name}: {stored.name} has shape {list(stored.shape)}")
    size_bytes = stored.size_bytes // stored.shape[0]
    offset = stored.offset + index * size_bytes
    return replace(stored, shape=stored.shape[1:], offset=offset, size_bytes=size_bytes)
