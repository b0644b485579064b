"""Compiled kernels where they are at least as fast as torch's on this machine, and torch's elsewhere.

The choice is made by timed trials, see `choice.py`, and is the same for all matrices of a kind and class of size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.kernels.cpu import CpuKernels
from engine.kernels.interface import (
    Activation,
    AddInPlace,
    Attention,
    AttentionShape,
    KvPool,
    LowRank,
    LowRankShape,
    Operator,
    Rotate,
)
from engine.kernels.native import trials
from engine.kernels.native.choice import Choices, Contest, size_class
from engine.kernels.native.library import find_library
from engine.kernels.native.operators import NativeKernels
from engine.kernels.reference import Kernels

_PLAIN = CpuKernels()
_CHOICES = Choices()  # shared by all models of a process, so that equal matrices have equal results


def find_native_kernels() -> ChosenKernels | None:
    """Return the kernels for this machine, or None if no compiled library was found."""
    library = find_library()
    return None if library is None else ChosenKernels(library)


class ChosenKernels(NativeKernels):
    """See `engine.kernels.reference.Kernels`."""

    def __init__(self, library: ctypes.CDLL, choices: Choices = _CHOICES) -> None:
        super().__init__(library)
        self._native = NativeKernels(library)
        self._choices = choices

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        is_native = self.supports_linear(weight) and self._is_linear_native(weight.shape, weight.dtype)
        return (self._native if is_native else _PLAIN).linear(weight, bias)

    def supports_packed(self, form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> bool:
        kind = self.packed_kind(form, shape, dtype)
        if kind is not None and self._is_packed_native(kind, shape):
            return True
        return _PLAIN.supports_packed(form, shape, dtype)

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        kind = self.packed_kind(matrix.form, matrix.shape, dtype)
        is_native = kind is not None and self._is_packed_native(kind, matrix.shape)
        return (self._native if is_native else _PLAIN).packed_linear(matrix, bias, dtype)

    def rms_norm(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> Operator:
        return self._for_small_operators().rms_norm(weight, eps, dtype)

    def rotation(self, num_heads: int) -> Rotate:
        return self._for_small_operators().rotation(num_heads)

    def activation(self, activation: Activation) -> Operator:
        return self._for_small_operators().activation(activation)

    def add(self, multiplier: float) -> AddInPlace:
        return self._for_small_operators().add(multiplier)

    def low_rank(self, shape: LowRankShape, dtype: torch.dtype) -> LowRank:
        name = f"LoRA {_name(dtype)}"
        is_native = self._choices.is_native(name, lambda: trials.low_rank(self._native, _PLAIN, dtype))
        return (self._native if is_native else _PLAIN).low_rank(shape, dtype)

    def attention(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> Attention:
        if pool.scales is not None:
            return _PLAIN.attention(pool, shape, sinks)
        dtype = pool.data.dtype
        name = f"attention {_name(dtype)}"
        is_native = self._choices.is_native(name, lambda: trials.attention(self._native, _PLAIN, dtype))
        return (self._native if is_native else _PLAIN).attention(pool, shape, sinks)

    def _is_linear_native(self, shape: Sequence[int], dtype: torch.dtype) -> bool:
        size = size_class(shape)

        def prepare() -> list[Contest]:
            return trials.product(lambda weight: self._native.linear(weight, None), size, dtype)

        return self._choices.is_native(f"{_name(dtype)} {size}", prepare)

    def _is_packed_native(self, kind: str, shape: tuple[int, int]) -> bool:
        size = size_class(shape)
        return self._choices.is_native(f"{kind} {size}", lambda: trials.packed_product(self._native, kind, size))

    def _for_small_operators(self) -> Kernels:
        """Return the kernels for norms, rotation, gates and additions."""
        is_native = self._choices.is_native("small operators", lambda: trials.small_operators(self._native, _PLAIN))
        return self._native if is_native else _PLAIN


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
