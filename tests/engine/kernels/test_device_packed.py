"""Packed weights with the kernels of a device: which forms stay packed, and 8-bit floats from one product to the next.

On this machine the operators' definitions run instead of the kernels.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.checkpoints.quantized import PackedForm, QuantizedTensor
from engine.checkpoints.weights import WeightsError
from engine.kernels.cpu import CpuKernels
from engine.kernels.device import DeviceKernels
from engine.kernels.interface import Float8Rows, Operator
from engine.kernels.reference import float8_rows
from tests.engine import one_thread  # noqa: F401
from tests.engine.checkpoints.test_float8 import COMPRESSED
from tests.engine.checkpoints.test_stored_models import Model, Stored
from tests.engine.made_checkpoints import Pusher, runner_of

FLOAT8_FORM = PackedForm(8, 64, is_symmetric=True, is_float=True)


def in_float8_rows(base: str, weight: torch.Tensor) -> Stored:
    """Store one scale per output."""
    rows = float8_rows(weight)
    stored = {f"{base}.weight": rows.values, f"{base}.weight_scale": rows.scales}
    return stored, rows.expand(torch.float32)


class CountingKernels(DeviceKernels):
    """Counts the products with 8-bit floats, by whether the inputs were already rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.num_rounded, self.num_plain = 0, 0

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        linear = super().packed_linear(matrix, bias, dtype)

        def forward(x: torch.Tensor) -> torch.Tensor:
            is_rounded = isinstance(x, Float8Rows)
            self.num_rounded, self.num_plain = self.num_rounded + is_rounded, self.num_plain + (not is_rounded)
            return linear(x)

        return forward


def test_float8_weights_stay_packed_and_norms_and_activations_round_for_them(tmp_path: Path) -> None:
    Model(tmp_path, COMPRESSED, in_float8_rows)
    counting, prompt = CountingKernels(), list(range(3, 40))
    packed, expanded = (
        Pusher(runner_of(tmp_path, kernels, dtype="bfloat16")).push(prompt) for kernels in (counting, CpuKernels())
    )
    assert (counting.num_rounded, counting.num_plain) == (9, 3)  # three layers; only attention reads plain results
    assert float((packed - expanded).norm()) < 0.2 * float(expanded.norm())  # random weights amplify rounding


def test_blocks_of_float8_weights_stay_packed_and_their_inputs_are_not_rounded(tmp_path: Path) -> None:
    """Blocks have 16 outputs and inputs here; checkpoints have 128."""

    def in_blocks(base: str, weight: torch.Tensor) -> Stored:
        num_out = len(weight)
        padded = torch.nn.functional.pad(weight, (0, 0, 0, -num_out % 16)).unflatten(0, (-1, 16)).unflatten(2, (-1, 16))
        scales = padded.abs().amax((1, 3)).clamp(min=1e-9) / 448  # [blocks of outputs, blocks of inputs]
        each = scales.repeat_interleave(16, 0)[:num_out].repeat_interleave(16, 1)
        values = (weight / each).to(torch.float8_e4m3fn)
        return {f"{base}.weight": values, f"{base}.weight_scale_inv": scales}, values.float() * each

    blocks = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    Model(tmp_path, blocks, in_blocks)
    counting, prompt = CountingKernels(), list(range(3, 40))
    packed, expanded = (
        Pusher(runner_of(tmp_path, kernels, dtype="bfloat16")).push(prompt) for kernels in (counting, CpuKernels())
    )
    assert (counting.num_rounded, counting.num_plain) == (0, 12)
    assert float((packed - expanded).norm()) < 0.05 * float(expanded.norm())


def test_float8_weights_below_compute_capability_8_9_are_refused_with_the_name_of_a_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Model(tmp_path, COMPRESSED, in_float8_rows)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    fault = "q_proj.weight: 8-bit floats need compute capability 8.9 or later \\(this device has 8.0\\)"
    with pytest.raises(WeightsError, match=fault):
        runner_of(tmp_path, DeviceKernels(), dtype="bfloat16")
    runner_of(tmp_path, DeviceKernels(), dtype="float32")  # expanded


@pytest.mark.parametrize(
    ("form", "shape", "dtype", "is_supported"),
    [
        (PackedForm(4, 128, is_symmetric=False), (72, 256), torch.bfloat16, True),
        (PackedForm(4, 32, is_symmetric=True), (72, 96), torch.bfloat16, True),
        (PackedForm(4, 96, is_symmetric=True), (72, 96), torch.bfloat16, True),  # one group
        (PackedForm(4, 96, is_symmetric=True), (72, 192), torch.bfloat16, False),
        (PackedForm(4, 32, is_symmetric=True), (72, 72), torch.bfloat16, False),
        (PackedForm(8, 16, is_symmetric=True), (72, 256), torch.bfloat16, True),
        (PackedForm(8, 256, is_symmetric=True, is_input_quantized=True), (72, 256), torch.bfloat16, True),
        (PackedForm(8, 256, is_symmetric=True), (72, 256), torch.float32, False),
        (FLOAT8_FORM, (48, 64), torch.bfloat16, True),
        (FLOAT8_FORM, (40, 64), torch.bfloat16, False),
        (FLOAT8_FORM, (40, 128), torch.bfloat16, True),  # two groups: blocks
        (FLOAT8_FORM, (48, 96), torch.bfloat16, False),
    ],
)
def test_supported_forms(form: PackedForm, shape: tuple[int, int], dtype: torch.dtype, is_supported: bool) -> None:
    assert DeviceKernels().supports_packed(form, shape, dtype) is is_supported
