"""The two files of a LoRA adapter as bytes, valid unless a test changes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

MODULES = {"layers.0.self_attn.q_proj": (16, 16), "layers.1.self_attn.v_proj": (16, 8)}  # (in, out)


def spark_modules() -> dict[str, tuple[int, int]]:
    """Return the query and value projections of the built-in model's first layer."""
    base = json.loads(Path("catalog/builtin/spark/config.json").read_text())
    heads = {"q_proj": base["num_attention_heads"], "v_proj": base["num_key_value_heads"]}
    return {f"layers.0.self_attn.{name}": (base["hidden_size"], num * base["head_dim"]) for name, num in heads.items()}


def config_bytes(**changes: Any) -> bytes:
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none",
              "task_type": "CAUSAL_LM", "use_dora": False, "modules_to_save": None, "model_type": "llama"}  # fmt: skip
    return json.dumps(config | changes).encode()


def weights_bytes(
    rank: int = 4, seed: int = 0, modules: Mapping[str, tuple[int, int]] = MODULES, **changes: np.ndarray | None
) -> bytes:
    """Return the weights file. `changes` replace matrices by tensor name; None removes one."""
    random = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for module, (num_in, num_out) in modules.items():
        name = f"base_model.model.model.{module}"
        tensors[f"{name}.lora_A.weight"] = random.standard_normal((rank, num_in)).astype(np.float32)
        tensors[f"{name}.lora_B.weight"] = random.standard_normal((num_out, rank)).astype(np.float32)
    tensors |= changes
    return save({name: matrix for name, matrix in tensors.items() if matrix is not None})
