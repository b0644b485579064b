"""Packed weights: products equal the reference, rows do not affect each other, and no second copy is stored."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints.quantized import PackedForm, QuantizedTensor, common_form, joined, quantized
from engine.kernels import cpu_packed
from engine.kernels.cpu import CpuKernels
from engine.kernels.interface import Operator
from engine.kernels.native import build, library
from engine.kernels.native.operators import NativeKernels
from engine.kernels.reference import Kernels
from tests.engine import one_thread  # noqa: F401
from tests.engine.checkpoints.made import (
    AWQ,
    GPTQ,
    awq_tensors,
    compressed_tensors,
    gptq_tensors,
    said_by_compressed_tensors,
)
from tests.engine.checkpoints.test_stored_models import Model, in_levels
from tests.engine.made_checkpoints import Pusher, runner_of

NUM_OUT, NUM_IN = 48, 128


def by_output() -> QuantizedTensor:
    generator = torch.Generator().manual_seed(1)
    levels = torch.randint(1, 256, (NUM_OUT, NUM_IN), generator=generator, dtype=torch.uint8)
    scales = torch.rand(NUM_OUT, 1, generator=generator) * 0.01
    return QuantizedTensor(8, levels, scales, None, NUM_IN, is_input_quantized=True)


def by_group(group_size: int, *, has_zeros: bool) -> QuantizedTensor:
    generator = torch.Generator().manual_seed(2)
    levels = torch.randint(0, 16, (NUM_OUT, NUM_IN), generator=generator, dtype=torch.uint8)
    scales = torch.rand(NUM_OUT, NUM_IN // group_size, generator=generator).to(torch.bfloat16).float()
    zeros = torch.randint(0, 16, scales.shape, generator=generator, dtype=torch.uint8) if has_zeros else None
    return quantized(levels, 4, scales, zeros, group_size, None)


def rows(num_rows: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(num_rows, NUM_IN, generator=torch.Generator().manual_seed(num_rows)).to(dtype)


def native_kernels() -> NativeKernels:
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    return NativeKernels(library.load(build.build()))


def kernels_named(name: str) -> CpuKernels:
    return CpuKernels() if name == "torch" else native_kernels()


def bind(kernels: Kernels, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
    """Bind the product as a model does: packed if the kernels accept the matrix, otherwise expanded."""
    if kernels.supports_packed(matrix.form, matrix.shape, dtype):
        return kernels.packed_linear(matrix, bias, dtype)
    return kernels.linear(matrix.dequantize(dtype), bias)


@pytest.mark.parametrize("kernels", ["torch", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_8_bit_product_equals_the_reference_and_rows_do_not_affect_each_other(
    dtype: torch.dtype, has_bias: bool, kernels: str
) -> None:
    matrix, bias = by_output(), torch.randn(NUM_OUT).to(dtype) if has_bias else None
    x = rows(19, dtype)
    x[4] = 0
    chosen = kernels_named(kernels)
    is_packed = chosen.supports_packed(matrix.form, matrix.shape, dtype)
    with torch.inference_mode():
        ours = bind(chosen, matrix, bias, dtype)
        y, expected = ours(x), Kernels().packed_linear(matrix, bias, dtype)(x)
        assert y.dtype == dtype
        if not is_packed:  # the inputs of an expanded matrix are not rounded; the reference rounds them to 255 levels
            torch.testing.assert_close(y, expected, atol=0.3, rtol=0.02)
            return
        if isinstance(chosen, NativeKernels) and not chosen.has_packed:  # rounds inputs per block instead of per row
            torch.testing.assert_close(y, expected, atol=0.3, rtol=0.02)
        else:
            torch.testing.assert_close(y, expected, atol=1e-4 if dtype == torch.float32 else 0.05, rtol=0.02)
        for row in range(19):
            assert torch.equal(ours(x[row : row + 1])[0], y[row])
        poisoned = x.clone()
        poisoned[2], poisoned[5, 3] = float("nan"), float("inf")
        healthy = [row for row in range(19) if row not in (2, 5)]
        after = ours(poisoned)
        assert torch.equal(after[healthy], y[healthy])
        assert not torch.isfinite(after[[2, 5]]).all(1).any()


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_4_bit_product_of_torch_equals_the_reference(group_size: int, has_zeros: bool) -> None:
    matrix, bias = by_group(group_size, has_zeros=has_zeros), torch.randn(NUM_OUT).bfloat16()
    for num_rows in (1, 5, 33):
        x = rows(num_rows, torch.bfloat16)
        y = bind(CpuKernels(), matrix, bias, torch.bfloat16)(x)
        expected = Kernels().packed_linear(matrix, bias, torch.bfloat16)(x)
        torch.testing.assert_close(y.float(), expected.float(), atol=1.0, rtol=0.02)  # sums of 128 numbers around 30


GROUPED_SIZES = [(1, 8, 8), (49, 40, 8), (100, 72, 24), (144, 288, 96), (48, 128, 32), (70, 256, 128), (33, 96, 16)]


def grouped(bits: int, kind: str, num_out: int, num_in: int, group_size: int) -> QuantizedTensor:
    """Return a matrix with scales per group, and with zeros or offsets if `kind` says so."""
    generator = torch.Generator().manual_seed(5)
    levels = torch.randint(0, 1 << bits, (num_out, num_in), generator=generator, dtype=torch.uint8)
    scales = torch.rand(num_out, num_in // group_size, generator=generator) * 2.0 ** (-bits)
    zeros = torch.randint(0, 1 << bits, scales.shape, generator=generator, dtype=torch.uint8)
    matrix = quantized(levels, bits, scales, zeros if kind == "zeros" else None, group_size, None)
    offsets = torch.randn(scales.shape, generator=generator) if kind == "offsets" else None
    return replace(matrix, offsets=offsets)


def with_rounded_inputs(matrix: QuantizedTensor, x: torch.Tensor) -> torch.Tensor:
    """Return the product of `matrix` with inputs rounded to 8 bits per block of at most 32 inputs, in float64."""
    unit = 8 if matrix.bits == 4 else 4
    block = max(size for size in range(unit, 33, unit) if matrix.group_size % size == 0)
    blocks = x.float().unflatten(1, (-1, block))
    peaks = blocks.abs().amax(-1, keepdim=True)
    rounded = torch.round(blocks * (127 / peaks)).nan_to_num(0) * (peaks / 127)
    return rounded.flatten(1).double() @ matrix.dequantize(torch.float32).double().t()


@pytest.mark.parametrize(("num_out", "num_in", "group_size"), GROUPED_SIZES)
@pytest.mark.parametrize("kind", ["symmetric", "zeros", "offsets"])
@pytest.mark.parametrize("bits", [4, 8])
def test_grouped_product_equals_the_reference_and_rows_do_not_affect_each_other(
    bits: int, kind: str, num_out: int, num_in: int, group_size: int
) -> None:
    if group_size % 8 and bits == 4:
        pytest.skip("4-bit groups are multiples of 8 inputs")
    native, matrix = native_kernels(), grouped(bits, kind, num_out, num_in, group_size)
    bias = torch.ones(num_out).bfloat16()
    x = torch.randn(15, num_in, generator=torch.Generator().manual_seed(6)).bfloat16()
    x[4] = 0
    assert native.supports_packed(matrix.form, matrix.shape, torch.bfloat16)
    ours = native.packed_linear(matrix, bias, torch.bfloat16)
    y, expected = ours(x), with_rounded_inputs(matrix, x) + 1
    torch.testing.assert_close(y.double(), expected, atol=4e-3 * float(expected.abs().max()), rtol=0.01)
    for num_rows in range(1, 15):
        assert torch.equal(ours(x[:num_rows]), y[:num_rows])
    poisoned = x.clone()
    poisoned[2], poisoned[5, 3] = float("nan"), float("inf")
    healthy = [row for row in range(15) if row not in (2, 5)]
    after = ours(poisoned)
    assert torch.equal(after[healthy], y[healthy])
    assert not torch.isfinite(after[[2, 5]]).any()


def test_grouped_product_is_close_to_that_of_exact_inputs() -> None:
    matrix, native = grouped(8, "symmetric", 64, 512, 32), native_kernels()
    x = torch.randn(9, 512, generator=torch.Generator().manual_seed(7)).bfloat16()
    y = native.packed_linear(matrix, None, torch.bfloat16)(x).float()
    expected = x.float() @ matrix.dequantize(torch.float32).t()
    assert (y - expected).norm() < 0.01 * expected.norm()


def test_grouped_products_of_largest_levels_do_not_overflow() -> None:
    native = native_kernels()
    for bits, level in ((4, 15), (4, 0), (8, 255), (8, 0)):
        levels = torch.full((20, 64), level, dtype=torch.uint8)
        matrix = quantized(levels, bits, torch.ones(20, 2), None, 32, None)
        x = torch.full((3, 64), 2.0).bfloat16()
        x[1] = -2.0
        y = native.packed_linear(matrix, None, torch.bfloat16)(x)
        expected = x.float() @ matrix.dequantize(torch.float32).t()
        torch.testing.assert_close(y.float(), expected, atol=0, rtol=0.01)


def test_native_8_bit_product_without_vnni_equals_the_one_with_it() -> None:
    """The grouped product serves scales per output where there is no kernel of their own."""
    native, matrix = native_kernels(), by_output()
    x = rows(19, torch.bfloat16)
    expected = Kernels().packed_linear(matrix, None, torch.bfloat16)(x)
    native.has_packed = False
    found = native.packed_linear(matrix, None, torch.bfloat16)(x)
    assert (found - expected).float().norm() < 0.02 * expected.float().norm()


def test_parts_in_different_forms_are_joined_exactly() -> None:
    """In Q4_K_M files, for example, values have more bits than queries and keys."""
    parts = [grouped(4, "offsets", 20, 64, 32), grouped(8, "symmetric", 12, 64, 16)]
    form = common_form([part.form for part in parts])
    assert form == PackedForm(8, 16, is_symmetric=False, has_offsets=True)
    expected = torch.cat([part.dequantize(torch.float32) for part in parts])
    found = joined(parts)
    assert found.form == form
    assert torch.equal(found.dequantize(torch.float32), expected)


def test_forms_without_a_common_form_are_not_joined() -> None:
    assert common_form([grouped(4, "zeros", 8, 64, 32).form, grouped(8, "symmetric", 8, 64, 32).form]) is None


INT4 = PackedForm(4, 32, is_symmetric=True)
INT8 = PackedForm(8, 128, is_symmetric=True, is_input_quantized=True)
BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("form", "shape", "dtype"),
    [(INT4, (48, 128), BFLOAT16), (replace(INT4, group_size=384), (48, 384), BFLOAT16), (INT8, (7, 128), FLOAT32)],
)
def test_matrix_is_accepted_if_the_probed_operator_is_usable(
    form: PackedForm, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    is_usable = cpu_packed.has_int4_linear() if form.bits == 4 else cpu_packed.has_int8_linear(dtype)
    assert CpuKernels().supports_packed(form, shape, dtype) is is_usable


@pytest.mark.parametrize(
    ("form", "shape", "dtype"),
    [
        pytest.param(replace(INT4, group_size=16), (48, 128), BFLOAT16, id="groups smaller than supported"),
        pytest.param(INT4, (40, 128), BFLOAT16, id="outputs not a multiple of 16"),
        pytest.param(INT4, (48, 128), FLOAT32, id="4-bit product with float32 inputs"),
        pytest.param(replace(INT8, is_input_quantized=False), (48, 128), BFLOAT16, id="inputs must not be rounded"),
        pytest.param(replace(INT8, is_symmetric=False), (48, 128), BFLOAT16, id="asymmetric"),
        pytest.param(replace(INT8, group_size=32), (48, 128), BFLOAT16, id="8-bit scales per group"),
    ],
)
def test_matrix_without_an_operator_is_refused(form: PackedForm, shape: tuple[int, int], dtype: torch.dtype) -> None:
    assert not CpuKernels().supports_packed(form, shape, dtype)


@pytest.mark.parametrize("kind", ["symmetric", "zeros", "offsets"])
def test_4_bit_product_of_torch_uses_zeros_and_offsets(kind: str) -> None:
    if not cpu_packed.has_int4_linear():
        pytest.skip("no usable 4-bit product on this CPU")
    matrix = grouped(4, kind, 48, 128, 32)
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    expected = x.float() @ matrix.dequantize(torch.float32).t()
    found = cpu_packed.bind_packed(matrix, None, torch.bfloat16)(x)
    assert (found - expected).float().norm() < 0.02 * expected.norm()


class ExpandingKernels(CpuKernels):
    """Accepts no packed matrix."""

    def supports_packed(self, _form: PackedForm, _shape: tuple[int, int], _dtype: torch.dtype) -> bool:
        return False


class CountingKernels(CpuKernels):
    """Counts the products that were bound."""

    def __init__(self) -> None:
        self.num_packed = self.num_plain = 0

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        self.num_packed += 1
        return super().packed_linear(matrix, bias, dtype)

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        self.num_plain += 1
        return super().linear(weight, bias)


def logits(folder: Path, kernels: Kernels) -> torch.Tensor:
    return Pusher(runner_of(folder, kernels, dtype="bfloat16")).push(list(range(3, 40)))


@pytest.mark.parametrize("name", ["gptq", "gptq reordered", "awq", "compressed-tensors"])
def test_published_4_bit_layouts_stay_packed(name: str, tmp_path: Path) -> None:
    config, pack = {
        "awq": (AWQ, awq_tensors),
        "compressed-tensors": (said_by_compressed_tensors(), compressed_tensors),
    }.get(name, (GPTQ, gptq_tensors))
    Model(tmp_path, config, in_levels(pack))
    if name == "gptq reordered":
        tensors = load_file(tmp_path / "model.safetensors")
        orders = {key: order.flip(0).contiguous() for key, order in tensors.items() if key.endswith("g_idx")}
        save_file(tensors | orders, tmp_path / "model.safetensors")
    counting = CountingKernels()
    packed, expanded = logits(tmp_path, counting), logits(tmp_path, ExpandingKernels())
    is_packed = name != "gptq reordered" and cpu_packed.has_int4_linear()
    assert (counting.num_packed, counting.num_plain) == ((12, 1) if is_packed else (0, 13))
    torch.testing.assert_close(packed, expanded, atol=0.06 * float(expanded.abs().max()), rtol=0)


def test_missing_operator_expands_weights_and_logs_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def missing(*_: object) -> Callable[[torch.Tensor], torch.Tensor]:
        raise AttributeError("no such operator")

    Model(tmp_path, GPTQ, in_levels(gptq_tensors))
    cpu_packed.has_int4_linear.cache_clear()
    monkeypatch.setattr(cpu_packed, "_int4", missing)
    counting = CountingKernels()
    with caplog.at_level(logging.WARNING):
        found = logits(tmp_path, counting)
    cpu_packed.has_int4_linear.cache_clear()
    assert counting.num_packed == 0
    assert [record.getMessage() for record in caplog.records] == [
        "no usable 4-bit product for torch.bfloat16 on this CPU: such weights are expanded at load"
    ]
    assert torch.equal(found, logits(tmp_path, ExpandingKernels()))


def test_slow_operator_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_packed.has_int4_linear.cache_clear()
    monkeypatch.setattr(cpu_packed, "_MAX_SLOWDOWN", 0)
    assert not cpu_packed.has_int4_linear()
    cpu_packed.has_int4_linear.cache_clear()


@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize(("bits", "kind"), [(4, "offsets"), (8, "symmetric"), (4, "zeros")])
def test_packed_embedding_returns_the_rows_of_the_expanded_one(bits: int, kind: str, kernels: str) -> None:
    matrix = grouped(bits, kind, 70, 96, 32)
    chosen = Kernels() if kernels == "reference" else native_kernels()
    look_up, head = chosen.packed_table(matrix, torch.bfloat16)
    ids = torch.tensor([0, 69, 5, 33, 5])
    torch.testing.assert_close(look_up(ids), matrix.dequantize(torch.float32)[ids], atol=2e-3, rtol=1e-3)
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(8)).bfloat16()
    assert torch.equal(head(x), chosen.packed_linear(matrix, None, torch.bfloat16)(x))
