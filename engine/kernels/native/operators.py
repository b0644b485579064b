"""`CpuKernels` with its frequent operators in C++: one call instead of several calls of torch operators.

Products, packed products, norms, rotation, gated silu, residual addition, LoRA and attention. Other operators,
and operands of other types, use torch. Available only if `library.py` finds a compiled library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.kernels.cpu import CpuKernels
from engine.kernels.interface import (
    GATED_SILU,
    Activation,
    AddInPlace,
    Attention,
    AttentionShape,
    AttentionStep,
    KvPool,
    LowRank,
    LowRankShape,
    LowRankTokens,
    Operator,
    RotaryTables,
    Rotate,
)
from engine.kernels.native.adapters import NativeLowRank
from engine.kernels.native.grouped import GroupedMatrix, supports_grouped
from engine.kernels.native.library import AttentionCall, load
from engine.kernels.native.packed import bind_by_output, supports_by_output
from engine.kernels.reference import Kernels

BY_OUTPUT = "8-bit by output"  # the kind of product for one scale per output
_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}


class NativeKernels(CpuKernels):
    """See `engine.kernels.reference.Kernels`. `chosen.py` decides which of these kernels are used.

    `has_packed` is True if the library has an 8-bit product for scales per output (AVX-512 BF16 and VNNI).
    """

    has_cheap_multi_token_rows = True

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.has_packed = bool(library.hearth_has_packed())
        # The rotary tables of the latest rotation and their addresses: all layers of a step share them.
        self._tables: RotaryTables = ()
        self._table_addresses: tuple[int, ...] = ()
        self._half = 0

    @staticmethod
    def supports_linear(weight: torch.Tensor) -> bool:
        """Return True if there is a compiled product with this weight [out, in]."""
        return weight.dtype in _SUFFIXES and weight.shape[1] % 2 == 0

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        if not self.supports_linear(weight):
            return super().linear(weight, bias)
        library, dtype, (num_out, num_in) = self._library, weight.dtype, weight.shape
        weight = weight if weight.stride(1) == 1 else weight.contiguous()
        panels = torch.empty(library.hearth_packed_size(num_out, num_in), dtype=dtype)
        pack = getattr(library, f"hearth_pack_{_SUFFIXES[dtype]}")
        pack(weight.data_ptr(), weight.stride(0), panels.data_ptr(), num_out, num_in)
        bias = None if bias is None else bias.to(dtype).contiguous()
        multiply, panels_at = getattr(library, f"hearth_linear_{_SUFFIXES[dtype]}"), panels.data_ptr()
        bias_at = None if bias is None else bias.data_ptr()

        def forward(x: torch.Tensor, _owners: object = (panels, bias)) -> torch.Tensor:
            x = x.contiguous()
            num_rows = x.shape[0]
            out = torch.empty(num_rows, num_out, dtype=dtype)
            multiply(x.data_ptr(), panels_at, bias_at, out.data_ptr(), num_rows, num_out, num_in)
            return out

        return forward

    def packed_kind(self, form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> str | None:
        """Return the name of the compiled product for such a matrix [out, in], or None if there is none."""
        if self.has_packed and supports_by_output(form, shape, dtype):
            return BY_OUTPUT
        return f"{form.bits}-bit" if supports_grouped(form, shape, dtype) else None

    def supports_packed(self, form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> bool:
        return self.packed_kind(form, shape, dtype) is not None or super().supports_packed(form, shape, dtype)

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        kind = self.packed_kind(matrix.form, matrix.shape, dtype)
        if kind is None:
            return super().packed_linear(matrix, bias, dtype)
        if kind == BY_OUTPUT:
            return bind_by_output(self._library, matrix, bias)
        return GroupedMatrix(self._library, matrix, bias).multiply

    def packed_table(self, matrix: QuantizedTensor, dtype: torch.dtype) -> tuple[Operator, Operator]:
        if supports_grouped(matrix.form, matrix.shape, dtype):
            grouped = GroupedMatrix(self._library, matrix, None)
            return grouped.look_up, grouped.multiply
        return super().packed_table(matrix, dtype)

    def rms_norm(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> Operator:
        if dtype not in _SUFFIXES:
            return super().rms_norm(weight, eps, dtype)
        function = getattr(self._library, f"hearth_rms_norm_{_SUFFIXES[dtype]}")
        exact = weight.float().contiguous()
        width, weight_at = exact.numel(), exact.data_ptr()

        def norm(x: torch.Tensor, _owner: object = exact) -> torch.Tensor:
            if x.dtype != torch.float32:
                x = x.float()
            x = x.contiguous()
            out = torch.empty(x.shape, dtype=dtype)
            function(x.data_ptr(), weight_at, out.data_ptr(), x.numel() // width, width, eps)
            return out

        return norm

    def rotation(self, num_heads: int) -> Rotate:
        functions = {dtype: getattr(self._library, f"hearth_rotate_{_SUFFIXES[dtype]}") for dtype in _SUFFIXES}

        def rotate(qkv: torch.Tensor, tables: RotaryTables) -> None:
            if tables is not self._tables:
                cos, sin = self._tables = tables
                self._table_addresses = cos.data_ptr(), cos.stride(0), sin.data_ptr(), sin.stride(0), cos.shape[0]
                self._half = cos.shape[-1]
            functions[qkv.dtype](qkv.data_ptr(), qkv.stride(0), *self._table_addresses, num_heads, self._half)

        return rotate

    def activation(self, activation: Activation) -> Operator:
        if activation != GATED_SILU:
            return super().activation(activation)
        functions = {dtype: getattr(self._library, f"hearth_gate_silu_{_SUFFIXES[dtype]}") for dtype in _SUFFIXES}

        def gate(gate_up: torch.Tensor) -> torch.Tensor:
            gate_up = gate_up.contiguous()
            num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
            out = torch.empty(num_tokens, width, dtype=gate_up.dtype)
            functions[gate_up.dtype](gate_up.data_ptr(), out.data_ptr(), num_tokens, width)
            return out

        return gate

    def add(self, multiplier: float) -> AddInPlace:
        function = self._library.hearth_accumulate_bf16

        def add(stream: torch.Tensor, x: torch.Tensor) -> None:
            if x.dtype == torch.bfloat16 and x.is_contiguous() and stream.is_contiguous():
                function(stream.data_ptr(), x.data_ptr(), multiplier, x.numel())
            else:
                stream.add_(x, alpha=multiplier)

        return add

    def low_rank(self, shape: LowRankShape, dtype: torch.dtype) -> LowRank:
        return NativeLowRank(self._library, shape, dtype)

    def attention(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> Attention:
        return NativeAttention(self._library, pool, shape, sinks)


class NativeAttention:
    """Attention of all rows that reads keys and values directly from the pool.

    A token's result is bitwise the same whether the token is computed alone, with other tokens of its row (prefill
    chunks, draft tokens) or beside any other rows.
    """

    def __init__(
        self, library: ctypes.CDLL, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor]
    ) -> None:
        self._function = getattr(library, f"hearth_attend_{_SUFFIXES[pool.data.dtype]}")
        self._pool = pool  # owns the memory at the addresses below
        self._layers = [layer.data_ptr() for layer in pool.data.unbind(0)]
        self._sinks = [sink.float().contiguous() for sink in sinks]
        self._sink_addresses: list[int | None] = [sink.data_ptr() for sink in self._sinks] or [None] * len(self._layers)
        self._output_width = shape.output_width
        constants = {
            "block_size": pool.block_size,
            "num_heads": shape.num_heads,
            "num_kv_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "value_dim": shape.output_head_dim,
            "kv_width": shape.kv_width,
            "value_offset": (shape.num_planes - 1) * shape.num_kv_heads * shape.head_dim,
            "scale": shape.score_scale,
            "softcap": shape.softcap or 0.0,
        }
        windows, window_of = shape.distinct_windows(pool.num_layers)
        calls = [AttentionCall(window=window.size or 0, chunk=window.chunk or 0, **constants) for window in windows]
        self._distinct_calls = calls
        self._calls = [(calls[index], ctypes.byref(calls[index])) for index in window_of]  # one call per layer
        self._owners: tuple[object, ...] = ()  # own the step's memory that the calls point to

    def begin(self, step: AttentionStep) -> None:
        slots = step.slot_mapping.contiguous()
        arrays = [
            np.ascontiguousarray(array, dtype=np.int32)
            for array in (step.block_tables, step.context_lens, step.query_starts)
        ]
        self._owners = slots, arrays
        tables, lens, starts = (array.ctypes.data for array in arrays)
        for call in self._distinct_calls:
            call.slots, call.block_tables, call.context_lens, call.query_starts = slots.data_ptr(), tables, lens, starts
            call.num_rows, call.table_stride = len(arrays[1]), arrays[0].shape[1]

    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        call, reference = self._calls[layer]
        out = torch.empty(qkv.shape[0], self._output_width, dtype=qkv.dtype)
        call.qkv, call.qkv_stride, call.out = qkv.data_ptr(), qkv.stride(0), out.data_ptr()
        call.kv, call.sinks = self._layers[layer], self._sink_addresses[layer]
        self._function(reference)
        return out


def check(path: Path) -> None:
    """Compare the library at `path` with torch on small operands. Raises OSError or AssertionError."""
    native, reference = NativeKernels(load(path)), Kernels()
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.05)):
            stream = torch.randn(3, 96, generator=generator)
            weight = torch.randn(192, 96, generator=generator).to(dtype)
            results = [_small_model(kernels, stream.clone(), weight) for kernels in (native, reference)]
            torch.testing.assert_close(*results, atol=tolerance, rtol=tolerance)


def _small_model(kernels: Kernels, stream: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return stream [T, C] after a norm, a product with weight [2 C, C], a LoRA adapter, a gate and an addition."""
    dtype = weight.dtype
    normalized = kernels.rms_norm(weight[0], 1e-6, dtype)(stream)
    product = kernels.linear(weight, None)(normalized)
    low_rank = kernels.low_rank(LowRankShape(len(weight[0]), 8, ((0, len(weight)),)), dtype)
    adapters = torch.zeros(1, low_rank.size, dtype=dtype)
    low_rank.write(adapters[0], 0, weight[:8], weight[:, :8] * 0.1)
    tokens = LowRankTokens(torch.zeros(len(stream), dtype=torch.int32), torch.arange(len(stream)))
    low_rank.bind(adapters, tokens)(normalized, product)
    gated = kernels.activation(GATED_SILU)(product * 0.1)
    kernels.add(0.5)(stream, gated)
    return stream
