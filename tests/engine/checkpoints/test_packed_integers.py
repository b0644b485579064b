"""GPTQ, AWQ and compressed-tensors: loaded values equal the definition of each format exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.checkpoints import packed_integers, weights
from engine.checkpoints.weights import WeightsError
from tests.engine import one_thread  # noqa: F401
from tests.engine.checkpoints.made import (
    AWQ,
    GPTQ,
    awq_tensors,
    compressed_tensors,
    gptq_tensors,
    random_levels,
    read,
    said_by_compressed_tensors,
    save,
)

OUT, IN = 40, 96


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read each matrix in several pieces, none of which contains all groups."""
    monkeypatch.setattr(packed_integers, "PIECE_ELEMENTS", 1300)


@pytest.mark.parametrize("is_shuffled", [False, True])
@pytest.mark.parametrize("is_version_1", [False, True])
@pytest.mark.parametrize("group_size", [16, 32, 96])
@pytest.mark.parametrize("bits", [4, 8])
def test_gptq(bits: int, group_size: int, is_version_1: bool, is_shuffled: bool, tmp_path: Path) -> None:
    made = random_levels(OUT, IN, group_size, bits, is_shuffled=is_shuffled)
    said = GPTQ | {"bits": bits, "group_size": -1 if group_size == IN else group_size, "desc_act": is_shuffled}
    said |= {} if is_version_1 else {"checkpoint_format": "gptq_v2"}
    checkpoint = save(tmp_path, gptq_tensors("x", made, is_version_1=is_version_1), said)
    assert torch.equal(read(checkpoint, "x.weight", (OUT, IN), torch.float32), made.weight())
    assert torch.equal(read(checkpoint, "x.weight", (OUT, IN), torch.bfloat16), made.weight().bfloat16())


def test_gptq_without_g_idx_groups_inputs_in_order(tmp_path: Path) -> None:
    made = random_levels(OUT, IN, 32)
    checkpoint = save(tmp_path, gptq_tensors("x", made, has_order=False), GPTQ)
    assert torch.equal(read(checkpoint, "x.weight", (OUT, IN), torch.float32), made.weight())


def test_gptq_with_other_bits_for_some_modules(tmp_path: Path) -> None:
    one, other = random_levels(OUT, IN, 32, 4), random_levels(OUT, IN, 16, 8)
    said = GPTQ | {"dynamic": {r"+:.*\.down_proj": {"bits": 8, "group_size": 16}, r"-:.*gate": {}}}
    checkpoint = save(tmp_path, gptq_tensors("x", one) | gptq_tensors("y", other), said)
    destinations = {"x.weight": torch.zeros(OUT, IN), "y.weight": torch.zeros(OUT, IN)}
    weights.load(checkpoint, destinations)
    assert torch.equal(destinations["x.weight"], one.weight())
    assert torch.equal(destinations["y.weight"], other.weight())


def test_biases_of_nothing_that_gptq_tools_write_are_let_pass_and_real_ones_are_not(tmp_path: Path) -> None:
    tensors = gptq_tensors("x", random_levels(OUT, IN, 32))
    room = {"x.weight": torch.zeros(OUT, IN)}
    weights.load(save(tmp_path, tensors | {"x.bias": torch.zeros(OUT)}, GPTQ), room)
    for bias in (torch.ones(OUT), torch.zeros(OUT, dtype=torch.int32), torch.zeros(5 << 20)):
        with pytest.raises(WeightsError, match=r"x\.bias is not used by this architecture"):
            weights.load(save(tmp_path, tensors | {"x.bias": bias}, GPTQ), room)


def test_unspecified_input_order_is_rejected(tmp_path: Path) -> None:
    tensors = gptq_tensors("x", random_levels(OUT, IN, 32, is_shuffled=True), has_order=False)
    with pytest.raises(WeightsError, match=r"x\.g_idx is missing, but desc_act"):
        read(save(tmp_path, tensors, GPTQ | {"desc_act": True}), "x.weight", (OUT, IN), torch.float32)


@pytest.mark.parametrize("group_size", [16, 32, 96])
def test_awq(group_size: int, tmp_path: Path) -> None:
    made = random_levels(OUT, IN, group_size)
    checkpoint = save(tmp_path, awq_tensors("x", made), AWQ | {"group_size": group_size})
    assert torch.equal(read(checkpoint, "x.weight", (OUT, IN), torch.float32), made.weight())


def test_settings_in_the_files_of_older_tools_count(tmp_path: Path) -> None:
    made = random_levels(OUT, IN, 32)
    save(tmp_path, awq_tensors("x", made), None)
    (tmp_path / "quant_config.json").write_text('{"w_bit": 4, "q_group_size": 32, "version": "GEMM"}')
    checkpoint = weights.open_checkpoint(tmp_path)
    assert torch.equal(read(checkpoint, "x.weight", (OUT, IN), torch.float32), made.weight())


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("num_out", "num_in", "group_size"), [(40, 96, 32), (37, 90, 30), (40, 96, 96), (5, 31, 31)])
def test_compressed_tensors(
    num_out: int, num_in: int, group_size: int, bits: int, has_zeros: bool, tmp_path: Path
) -> None:
    made = random_levels(num_out, num_in, group_size, bits)
    if not has_zeros:
        made = replace(made, zeros=np.full_like(made.zeros, 1 << (bits - 1)))
    is_channel = group_size == num_in
    said = said_by_compressed_tensors(
        bits, None if is_channel else group_size, strategy="channel" if is_channel else "group"
    )
    checkpoint = save(tmp_path, compressed_tensors("x", made, has_zeros=has_zeros), said)
    assert torch.equal(read(checkpoint, "x.weight", (num_out, num_in), torch.float32), made.weight())


@pytest.mark.parametrize("scale_shape", [(OUT, 1), (OUT,), (1,), ()])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_compressed_tensors_of_plain_integers(scale_shape: tuple[int, ...], has_zeros: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(-128, 128, (OUT, IN)).astype(np.int8)
    scales = rng.uniform(0.001, 0.02, scale_shape).astype(np.float32)
    zeros = rng.integers(-5, 5, scale_shape).astype(np.int8)
    tensors = {
        "x.weight": torch.from_numpy(values),
        "x.weight_scale": torch.tensor(scales).bfloat16(),
        "x.input_scale": torch.ones(1),
    }
    tensors |= {"x.weight_zero_point": torch.tensor(zeros)} if has_zeros else {}
    said = said_by_compressed_tensors(8, strategy="channel") | {"format": "int-quantized"}
    checkpoint = save(tmp_path, tensors, said)
    rounded = torch.tensor(scales).bfloat16().float().reshape(-1, 1)
    steps = torch.from_numpy(values).float() - (torch.tensor(zeros).float().reshape(-1, 1) if has_zeros else 0.0)
    assert torch.equal(read(checkpoint, "x.weight", (OUT, IN), torch.float32), steps * rounded)


def test_packed_matrix_is_read_packed_with_the_same_values(tmp_path: Path) -> None:
    for index, (tensors, said, made) in enumerate(
        [
            (gptq_tensors("x", m := random_levels(OUT, IN, 32)), GPTQ, m),
            (gptq_tensors("x", m := random_levels(OUT, IN, 32, is_shuffled=True)), GPTQ, m),
            (gptq_tensors("x", m := random_levels(OUT, IN, 32, 8)), GPTQ | {"bits": 8}, m),
            (awq_tensors("x", m := random_levels(OUT, IN, 32)), AWQ, m),
            (compressed_tensors("x", m := random_levels(OUT, IN, 32)), said_by_compressed_tensors(), m),
            (compressed_tensors("x", m := random_levels(5, 31, 31)), said_by_compressed_tensors(group_size=31), m),
        ]
    ):
        folder = tmp_path / str(index)
        folder.mkdir()
        source: Any = save(folder, tensors, said).find("x.weight")
        with weights.Files() as files:
            packed = source.read_quantized(files)
        assert packed.shape == made.levels.shape
        assert torch.equal(packed.levels(), torch.from_numpy(made.levels).to(torch.uint8))
        assert torch.equal(packed.dequantize(torch.float32), made.weight())
        assert packed.packed.numel() * 8 == made.levels.size * (packed.bits if made.levels.shape[1] % 2 == 0 else 8)


# ── invalid files ──


def without(tensors: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: without(t, "x.scales"), r"tensor x\.scales is missing"),
        (lambda t: without(t, "x.qzeros"), r"tensor x\.qzeros is missing"),
        (lambda t: without(t, "x.qweight"), r"tensor x\.weight is missing"),
        (lambda t: t | {"x.g_idx": t["x.g_idx"] + 3}, r"x\.g_idx names a group outside the 3"),
        (lambda t: t | {"x.g_idx": t["x.g_idx"] - 1}, r"x\.g_idx names a group outside the 3"),
        (lambda t: t | {"x.g_idx": t["x.g_idx"][:90]}, r"expected I32 of shape \[96\]"),
        (lambda t: t | {"x.g_idx": t["x.g_idx"][:64]}, "4 bits in groups of 32"),
        (lambda t: t | {"x.g_idx": t["x.g_idx"].float()}, "expected I32"),
        (lambda t: t | {"x.scales": t["x.scales"][:2]}, "3 groups|2 groups"),
        (lambda t: t | {"x.scales": t["x.scales"][:, :8]}, "do not fit 40 outputs"),
        (lambda t: t | {"x.scales": t["x.scales"].int()}, r"x\.scales has type I32"),
        (lambda t: t | {"x.scales": t["x.scales"][0]}, r"x\.scales \[40\]"),
        (lambda t: t | {"x.scales": t["x.scales"] * float("nan")}, r"x\.scales holds NaN"),
        (lambda t: t | {"x.qzeros": t["x.qzeros"][:, :2]}, "do not fit 40 outputs"),
        (lambda t: t | {"x.qweight": t["x.qweight"].float()}, r"x\.qweight has type F32"),
        (lambda t: t | {"x.qweight": t["x.qweight"].flatten()}, r"x\.qweight has shape \[480\]"),
        (lambda t: t | {"x.qweight": t["x.qweight"][:6]}, "4 bits in groups of 32"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused_by_name(change: Any, message: str, tmp_path: Path) -> None:
    tensors = gptq_tensors("x", random_levels(OUT, IN, 32))
    with pytest.raises(WeightsError, match=message):
        read(save(tmp_path, change(tensors), GPTQ), "x.weight", (OUT, IN), torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: without(t, "x.weight_scale"), r"tensor x\.weight_scale is missing"),
        (lambda t: t | {"x.weight_shape": torch.tensor([OUT, 0])}, "gives 0 inputs"),
        (lambda t: t | {"x.weight_shape": torch.tensor([OUT, 1 << 40])}, "inputs"),
        (lambda t: t | {"x.weight_shape": torch.tensor([OUT, 48])}, "4 bits in groups of 32"),
        (lambda t: t | {"x.weight_shape": torch.ones(2)}, "F32"),
        (lambda t: t | {"x.weight_scale": t["x.weight_scale"][:7]}, r"x\.weight_scale"),
        (lambda t: t | {"x.weight_zero_point": t["x.weight_zero_point"][:1]}, r"x\.weight_zero_point"),
        (lambda t: t | {"x.weight_packed": t["x.weight_packed"].flatten()}, r"x\.weight_packed has shape"),
        (lambda t: t | {"x.weight_g_idx": torch.full((IN,), 9, dtype=torch.int32)}, "outside the 3"),
    ],
)
def test_parts_of_compressed_tensors_too(change: Any, message: str, tmp_path: Path) -> None:
    tensors = compressed_tensors("x", random_levels(OUT, IN, 32))
    with pytest.raises(WeightsError, match=message):
        read(save(tmp_path, change(tensors), said_by_compressed_tensors()), "x.weight", (OUT, IN), torch.float32)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("int4", "is not an object"),
        ({"bits": 4}, "quant_method='None' is not supported"),
        ({"quant_method": "bitsandbytes"}, "quant_method='bitsandbytes' is not supported"),
        (GPTQ | {"bits": 3}, "bits='3' is not supported"),
        (GPTQ | {"bits": "4"}, "bits='4' is not supported"),
        (GPTQ | {"group_size": 0}, "group_size='0'"),
        (GPTQ | {"group_size": True}, "group_size='True'"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
        (GPTQ | {"checkpoint_format": 0}, "checkpoint_format='0'"),
        (GPTQ | {"desc_act": "yes"}, "desc_act='yes'"),
        (GPTQ | {"dynamic": [1]}, "dynamic is not an object"),
        (AWQ | {"version": "gemv"}, "version='gemv'"),
        (AWQ | {"bits": 8}, "bits='8'"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "block size"),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, "block size"),
        ({"quant_method": "compressed-tensors"}, "config_groups is missing"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {}}}, "weights is missing"),
        (said_by_compressed_tensors() | {"format": "nvfp4-pack-quantized"}, "format='nvfp4-pack-quantized'"),
        (said_by_compressed_tensors(bits=2), "num_bits='2'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_field(said: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message):
        save(tmp_path, {"x.weight": torch.ones(2, 2)}, said)
