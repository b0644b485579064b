"""Tiny random checkpoints that transformers writes and answers for, and a way to push tokens through our runner.

transformers is imported here and nowhere in the engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel

from engine import inputs
from engine.config import EngineConfig
from engine.kernels.interface import Kernels
from engine.runner import Runner
from engine.scheduler import ScheduledStep
from engine.sequence import SlotTable
from tests.engine import one_thread  # noqa: F401

_COMMON: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # far from uniform: the likeliest token is clearly the likeliest
    "bos_token_id": None,
    "eos_token_id": None,
}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}

KINDS: dict[str, dict[str, Any]] = {
    "llama 2": {"num_key_value_heads": 6},
    "llama 3 with scaled positions": {"rope_parameters": _LLAMA3},
    "tied, with biases": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 1},
    "linear positions": {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}},
    "yarn positions": {"rope_parameters": _YARN},
    "mistral": {"sliding_window": 9, "head_dim": 12},
    "mistral without window": {"sliding_window": None},
}


def save_random(kind: str, folder: Path, **changes: Any) -> PreTrainedModel:
    """Write a random float32 model of `kind` to `folder` and return it, in eager attention."""
    settings = _COMMON | KINDS[kind] | changes
    seed = sum(kind.encode())
    torch.manual_seed(seed)
    if kind.startswith("mistral"):
        model: PreTrainedModel = MistralForCausalLM(MistralConfig(**settings, attn_implementation="eager"))
    else:
        model = LlamaForCausalLM(LlamaConfig(**settings, attn_implementation="eager"))
    with torch.no_grad():  # norms and biases start at 1 and 0, which would hide their being mixed up
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder)
    return model.eval()


def runner_of(folder: Path, kernels: Kernels | None = None, **settings: Any) -> Runner:
    defaults: dict[str, Any] = {"dtype": "float32", "num_blocks": 64}
    return Runner(EngineConfig(model_dir=folder, **(defaults | settings)), kernels)


class Pusher:
    """One sequence in blocks of random order, pushed through a runner chunk by chunk."""

    def __init__(self, runner: Runner, seed: int = 0, sequence_id: int = 1) -> None:
        self.runner = runner
        self.table = SlotTable(1, runner.max_model_len, runner.block_size)
        blocks = np.random.default_rng(seed).permutation(runner.num_blocks)
        self.table.block_table[0] = blocks[: self.table.block_table.shape[1]]
        self.table.sequence_id[0] = sequence_id
        self.table.num_logprobs[0] = -1

    def push(self, token_ids: list[int]) -> torch.Tensor:
        """Logits [V] after the last of `token_ids`, which go through in one step."""
        table, slot = self.table, np.zeros(1, np.int32)
        first = int(table.length[0])
        table.token_ids[0, first : first + len(token_ids)] = token_ids
        table.length[0] += len(token_ids)
        step = ScheduledStep(slot, np.array([len(token_ids)], np.int32))
        logits = self.runner.forward(inputs.build(step, table))  # [1, V]
        table.num_computed[0] = table.length[0]
        return logits[0]
