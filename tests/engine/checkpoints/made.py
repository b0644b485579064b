"""Checkpoints written in NumPy from the definition of each format, and the values that they encode."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from engine.checkpoints import weights

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # order in which AWQ stores eight outputs in a word

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


@dataclass(frozen=True)
class Levels:
    """weight[o, i] = (levels[o, i] - zeros[g, o]) × scales[g, o], g = groups[i]."""

    levels: NDArray[np.int64]  # [out, in]
    zeros: NDArray[np.int64]  # [groups, out]
    scales: NDArray[np.float16]  # [groups, out]
    groups: NDArray[np.int64]  # [in]
    bits: int

    def weight(self) -> torch.Tensor:
        out = np.empty(self.levels.shape, np.float32)
        for index, group in enumerate(self.groups):
            steps = self.levels[:, index] - self.zeros[group]
            out[:, index] = steps.astype(np.float32) * self.scales[group].astype(np.float32)
        return torch.from_numpy(out)


def random_levels(
    num_out: int, num_in: int, group_size: int, bits: int = 4, *, seed: int = 0, is_shuffled: bool = False
) -> Levels:
    rng = np.random.default_rng(seed)
    num_groups = -(-num_in // group_size)
    groups = np.arange(num_in) // group_size
    return Levels(
        rng.integers(0, 1 << bits, (num_out, num_in)),
        rng.integers(0, 1 << bits, (num_groups, num_out)),
        rng.uniform(0.001, 0.02, (num_groups, num_out)).astype(np.float16),
        rng.permutation(groups) if is_shuffled else groups,
        bits,
    )


def nearest_levels(weight: NDArray[np.float32], group_size: int, bits: int) -> Levels:
    """Round [out, in] to levels with a zero per group, accurately enough for a model to give similar tokens."""
    num_out, num_in = weight.shape
    grouped = weight.reshape(num_out, -1, group_size)
    low, high = grouped.min(-1), grouped.max(-1)
    scales = (np.maximum(high - low, 1e-6) / ((1 << bits) - 2)).astype(np.float16)
    zeros = np.clip(np.round(-low / scales), 1, (1 << bits) - 1)
    levels = np.clip(np.round(grouped / scales[:, :, None]) + zeros[:, :, None], 0, (1 << bits) - 1)
    groups = np.arange(num_in) // group_size
    return Levels(
        levels.reshape(num_out, num_in).astype(np.int64), zeros.T.astype(np.int64), scales.T.copy(), groups, bits
    )


def words(values: NDArray[np.int64], bits: int) -> torch.Tensor:
    """Pack [rows, n × 32 / bits] into int32 [rows, n], the first value in the lowest bits; short rows are padded with
    0.
    """
    per_word = 32 // bits
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % per_word))).astype(np.uint64)
    packed = np.zeros((len(values), padded.shape[1] // per_word), np.uint64)
    for place in range(per_word):
        packed |= padded[:, place::per_word] << np.uint64(place * bits)
    return torch.from_numpy(packed.astype(np.uint32).view(np.int32))


def less_one(zeros: torch.Tensor, bits: int) -> torch.Tensor:
    """Convert words of zeros of version 2 to version 1 as tools do: one subtraction per word, with borrows."""
    ones = np.uint32(sum(1 << place for place in range(0, 32, bits)))
    return torch.from_numpy((zeros.numpy().view(np.uint32) - ones).view(np.int32))


def gptq_tensors(base: str, levels: Levels, *, is_version_1: bool = True, has_order: bool = True) -> dict[str, Any]:
    zeros = words(levels.zeros, levels.bits)
    tensors = {
        f"{base}.qweight": words(levels.levels, levels.bits).t().contiguous(),
        f"{base}.qzeros": less_one(zeros, levels.bits) if is_version_1 else zeros,
        f"{base}.scales": torch.from_numpy(levels.scales),
    }
    if has_order:
        tensors[f"{base}.g_idx"] = torch.from_numpy(levels.groups.astype(np.int32))
    return tensors


def awq_tensors(base: str, levels: Levels) -> dict[str, Any]:
    def in_order(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return values.reshape(len(values), -1, 8)[:, :, AWQ_ORDER].reshape(values.shape)

    return {
        f"{base}.qweight": words(in_order(levels.levels.T), 4),
        f"{base}.qzeros": words(in_order(levels.zeros), 4),
        f"{base}.scales": torch.from_numpy(levels.scales),
    }


def compressed_tensors(base: str, levels: Levels, *, has_zeros: bool = True) -> dict[str, Any]:
    tensors = {
        f"{base}.weight_packed": words(levels.levels, levels.bits),
        f"{base}.weight_scale": torch.from_numpy(np.ascontiguousarray(levels.scales.T)),
        f"{base}.weight_shape": torch.tensor(levels.levels.shape),
    }
    if has_zeros:
        tensors[f"{base}.weight_zero_point"] = words(levels.zeros, levels.bits).t().contiguous()
    return tensors


def said_by_compressed_tensors(bits: int = 4, group_size: int | None = 32, **changes: Any) -> dict[str, Any]:
    scheme = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": group_size, "symmetric": False}
    group = {"targets": ["Linear"], "weights": scheme | changes, "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}}


def save(folder: Path, tensors: dict[str, torch.Tensor], said: dict[str, Any] | None) -> weights.Checkpoint:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    config = {} if said is None else {"quantization_config": said}
    (folder / "config.json").write_text(json.dumps(config))
    return weights.open_checkpoint(folder)


def read(checkpoint: weights.Checkpoint, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Load one parameter into the middle of a larger tensor."""
    room = torch.full((shape[0] + 2, *shape[1:]), 77.0, dtype=dtype)
    weights.load(checkpoint, {name: room[1:-1]})
    assert (room[0] == 77).all()
    assert (room[-1] == 77).all()
    return room[1:-1].clone()
