"""8-bit floats and MXFP4: values equal the format's definition times the scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.checkpoints import dense, mxfp4
from engine.checkpoints.weights import WeightsError
from tests.engine import one_thread  # noqa: F401
from tests.engine.checkpoints.made import read, save

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCKS = FP8 | {"weight_block_size": [128, 128]}
OUT, IN = 300, 260
_WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel"}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": _WEIGHTS}},
}
COMPRESSED_BLOCKS = COMPRESSED | {
    "config_groups": {"group_0": {"weights": _WEIGHTS | {"strategy": "block", "block_structure": [64, 32]}}}
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (dense, mxfp4):
        monkeypatch.setattr(module, "PIECE_ELEMENTS", 20_000)


def float8(codes: NDArray[np.uint8], exponent_bits: int, mantissa_bits: int) -> NDArray[np.float32]:
    """Return the value of a code from sign, exponent and mantissa. The smallest exponent has no leading 1."""
    bias = (1 << (exponent_bits - 1)) - 1
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = (codes >> mantissa_bits).astype(int) & ((1 << exponent_bits) - 1)
    mantissa = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    size = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias))
    return (sign * size).astype(np.float32)


def random_codes(rng: np.random.Generator, dtype: torch.dtype) -> NDArray[np.uint8]:
    codes = rng.integers(0, 256, (OUT, IN)).astype(np.uint8)
    largest = 0x7E if dtype == torch.float8_e4m3fn else 0x7B  # codes above are NaN and infinity
    return np.where((codes & 0x7F) > largest, 0, codes).astype(np.uint8)


def spread(scales: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    return np.repeat(np.repeat(scales, height, 0), width, 1)[:OUT, :IN]


SCALES = {
    "tensor": ((), "weight_scale", FP8, lambda s: s),
    "tensor of one": ((1,), "weight_scale", FP8, lambda s: s),
    "outputs": ((OUT, 1), "weight_scale", FP8, lambda s: s),
    "outputs in a list": ((OUT,), "weight_scale", FP8, lambda s: s[:, None]),
    "blocks": ((3, 3), "weight_scale_inv", BLOCKS, lambda s: spread(s, 128, 128)),
    "blocks, unsaid": ((3, 3), "weight_scale_inv", FP8, lambda s: spread(s, 128, 128)),
    "outputs, compressed-tensors": ((OUT, 1), "weight_scale", COMPRESSED, lambda s: s),
    "blocks, compressed-tensors": ((5, 9), "weight_scale", COMPRESSED_BLOCKS, lambda s: spread(s, 64, 32)),
    "tensor, ModelOpt": ((), "weight_scale", {"quant_method": "modelopt", "quant_algo": "FP8"}, lambda s: s),
    "tensor, unsaid": ((), "weight_scale", None, lambda s: s),
    "other blocks": ((5, 9), "weight_scale", FP8 | {"weight_block_size": [64, 32]}, lambda s: spread(s, 64, 32)),
}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("kind", SCALES)
def test_float8_weights_are_multiplied_by_their_scales(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    shape, ending, said, to_all = SCALES[kind]
    rng = np.random.default_rng(0)
    codes, scales = random_codes(rng, dtype), rng.uniform(0.5, 2.0, shape).astype(np.float32)
    tensors = {"x.weight": torch.from_numpy(codes).view(dtype), f"x.{ending}": torch.tensor(scales)}
    tensors["x.input_scale"] = torch.ones(1)
    layout = (4, 3) if dtype == torch.float8_e4m3fn else (5, 2)
    expected = torch.from_numpy(float8(codes, *layout) * np.asarray(to_all(scales), np.float32))
    checkpoint = save(tmp_path, tensors, said)
    assert torch.equal(read(checkpoint, "x.weight", (OUT, IN), torch.float32), expected)
    assert torch.equal(read(checkpoint, "x.weight", (OUT, IN), torch.bfloat16), expected.bfloat16())


def test_float8_weights_without_scales_are_loaded(tmp_path: Path) -> None:
    codes = random_codes(np.random.default_rng(0), torch.float8_e4m3fn)
    checkpoint = save(tmp_path, {"x.weight": torch.from_numpy(codes).view(torch.float8_e4m3fn)}, None)
    assert torch.equal(read(checkpoint, "x.weight", (OUT, IN), torch.float32), torch.from_numpy(float8(codes, 4, 3)))


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (None, "its scale .* is missing"),
        (torch.ones(3, 2), r"weight_scale has shape \[3, 2\]"),
        (torch.ones(OUT, 2), "weight_scale has shape"),
        (torch.tensor(float("nan")), "weight_scale holds NaN"),
        (torch.full((OUT, 1), float("inf")), "weight_scale holds NaN or infinity"),
        (torch.ones(1, dtype=torch.int32), "weight_scale has type I32"),
    ],
)
def test_scales_of_a_wrong_shape_are_rejected_by_name(scale: Any, message: str, tmp_path: Path) -> None:
    tensors = {"x.weight": torch.ones(OUT, IN).to(torch.float8_e4m3fn)}
    tensors |= {} if scale is None else {"x.weight_scale": scale}
    with pytest.raises(WeightsError, match=message):
        read(save(tmp_path, tensors, FP8), "x.weight", (OUT, IN), torch.float32)


def test_nan_codes_are_rejected(tmp_path: Path) -> None:
    codes = torch.zeros(OUT, IN, dtype=torch.uint8)
    codes[200, 7] = 0x7F
    tensors = {"x.weight": codes.view(torch.float8_e4m3fn), "x.weight_scale": torch.ones(())}
    with pytest.raises(WeightsError, match=r"x\.weight holds NaN"):
        read(save(tmp_path, tensors, FP8), "x.weight", (OUT, IN), torch.float32)


# ── MXFP4 ──

E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
EXPERTS, MX_OUT, GROUPS = 3, 70, 4


def mxfp4_tensors() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return blocks, scales and the values [experts, in, out] that they encode."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (EXPERTS, MX_OUT, GROUPS, 16)).astype(np.uint8)
    scales = rng.integers(110, 140, (EXPERTS, MX_OUT, GROUPS)).astype(np.uint8)
    weight = np.zeros((EXPERTS, MX_OUT, GROUPS * 32), np.float32)
    for (expert, row, group, byte), code in np.ndenumerate(blocks):
        power = 2.0 ** (int(scales[expert, row, group]) - 127)
        at = group * 32 + byte * 2
        weight[expert, row, at : at + 2] = E2M1[code & 15] * power, E2M1[code >> 4] * power
    tensors = {"x_blocks": torch.from_numpy(blocks), "x_scales": torch.from_numpy(scales)}
    return tensors, torch.from_numpy(weight).transpose(1, 2)


def test_mxfp4_blocks_are_decoded_by_definition(tmp_path: Path) -> None:
    tensors, expected = mxfp4_tensors()
    checkpoint = save(tmp_path, tensors, {"quant_method": "mxfp4"})
    assert torch.equal(read(checkpoint, "x", tuple(expected.shape), torch.float32), expected)
    turned = torch.zeros(EXPERTS, MX_OUT, GROUPS * 32, dtype=torch.bfloat16)
    read_into = turned.transpose(1, 2)
    assert torch.equal(read(checkpoint, "x", tuple(read_into.shape), torch.bfloat16), expected.bfloat16())


def test_mxfp4_weights_equal_those_of_transformers() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors, expected = mxfp4_tensors()
    theirs = convert_moe_packed_tensors(tensors["x_blocks"], tensors["x_scales"], dtype=torch.float32)
    assert torch.equal(theirs, expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: {"x_blocks": t["x_blocks"]},
        lambda t: t | {"x_blocks": t["x_blocks"][..., :8]},
        lambda t: t | {"x_blocks": t["x_blocks"][0]},
        lambda t: t | {"x_scales": t["x_scales"][:2]},
        lambda t: t | {"x_scales": t["x_scales"].float()},
        lambda t: t | {"x_scales": torch.full_like(t["x_scales"], 255)},
    ],
)
def test_mxfp4_blocks_and_scales_of_wrong_shapes_are_rejected(change: Any, tmp_path: Path) -> None:
    tensors, expected = mxfp4_tensors()
    with pytest.raises(WeightsError, match=r"x_scales|not MXFP4"):
        read(save(tmp_path, change(tensors), {"quant_method": "mxfp4"}), "x", tuple(expected.shape), torch.float32)
