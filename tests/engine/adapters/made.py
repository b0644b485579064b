"""LoRA adapters in PEFT's format, made for a checkpoint, and the checkpoint with one merged into its weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from engine.adapters.cache import AdapterCache
from engine.adapters.local_adapter import LocalAdapter
from engine.adapters.slot_pool import AdapterShape, AdapterSize
from engine.config import EngineConfig

Matrices = dict[str, tuple[torch.Tensor, torch.Tensor]]


def random_matrices(sites: Mapping[str, tuple[int, int]], rank: int = 4, seed: int = 0, size: float = 0.3) -> Matrices:
    """Return module -> (A [rank, in], B [out, rank]), large enough to change sampled tokens."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for module, (num_in, num_out) in sorted(sites.items()):
        a = torch.randn(rank, num_in, generator=generator) / num_in**0.5
        made[module] = (a, torch.randn(num_out, rank, generator=generator) * size)
    return made


def named(sites: Mapping[str, tuple[int, int]], targets: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the modules whose last name part is among `targets`."""
    return {module: shape for module, shape in sites.items() if module.rpartition(".")[2] in targets}


def config_of(matrices: Matrices, **changes: Any) -> dict[str, Any]:
    rank = next(iter(matrices.values()))[0].shape[0]
    targets = sorted({module.rpartition(".")[2] for module in matrices})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2 * rank, "bias": "none",
              "target_modules": targets, "base_model_name_or_path": "x", "use_rslora": False, "modules_to_save": None,
              "model_type": "llama"}  # fmt: skip
    return config | changes


def save_adapter(folder: Path, matrices: Matrices, dtype: torch.dtype = torch.float32, **changes: Any) -> LocalAdapter:
    """Write both files of an adapter; `changes` go into its config. The digest is the folder's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config_of(matrices, **changes)))
    tensors = {}
    for module, (a, b) in matrices.items():
        tensors[f"base_model.model.model.{module}.lora_A.weight"] = a.to(dtype).contiguous()
        tensors[f"base_model.model.model.{module}.lora_B.weight"] = b.to(dtype).contiguous()
    save_file(tensors, folder / "adapter_model.safetensors")
    return LocalAdapter(str(folder), str(folder))


def save_merged(model_dir: Path, folder: Path, matrices: Matrices, scale: float) -> Path:
    """Copy a checkpoint with scale × B A added to its weights."""
    shutil.copytree(model_dir, folder)
    weights = load_file(model_dir / "model.safetensors")
    for module, (a, b) in matrices.items():
        (name,) = [each for each in weights if each.endswith(f"{module}.weight")]
        weights[name] = (weights[name].double() + scale * (b.double() @ a.double())).to(weights[name].dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def has_references(cache: AdapterCache, budget_bytes: int = EngineConfig.adapter_memory_bytes) -> bool:
    """Return True if any adapter of the cache is in use: one as large as the budget would not fit."""
    return not cache.has_room([AdapterSize(AdapterShape(8, ()), budget_bytes)])
