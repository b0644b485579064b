"""EngineConfig: how one replica runs. Frozen, units in the names, light to import (no torch, no NumPy).

What the model is (layers, heads, vocabulary) is read from its `config.json` by `engine/models/config.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_SPECULATION = "off"  # where neither a card nor a setting says anything
DRAFT = "draft:"


@dataclass(frozen=True)
class EngineConfig:
    """One replica's settings.

    `dtype` "auto" takes what is fastest here for the checkpoint's own precision; "float32" is the parity setting.
    `num_blocks` 0 derives the pool from `kv_memory_bytes`, which all ranks share. `max_model_len` 0 is the model's own
    context.
    """

    model_dir: Path
    dtype: str = "auto"  # auto | float32 | bfloat16
    device: str = "cpu"
    block_size: int = 16  # tokens per block
    num_blocks: int = 0
    kv_memory_bytes: int = 256 * 1024 * 1024
    max_sequences: int = 64  # slots: running sequences
    max_waiting: int = 1024  # sequences queued behind them
    max_step_tokens: int = 512  # budget of one step: decode rows first, prefill chunks fill the rest
    max_model_len: int = 0
    num_threads: int = 1  # of all ranks together, at least one each
    tensor_parallel: int = 1  # ranks that share the model, each with a part of its heads, experts and vocabulary
    is_prefix_cache_enabled: bool = True
    adapter_memory_bytes: int = 512 * 1024 * 1024  # of LoRA matrices kept beside the model; the oldest idle ones leave
    speculation: str = "off"  # off | prompt_lookup | draft:<folder of a smaller model with the same tokenizer>
    free_step_tokens: int = 16  # what a step carries at about the cost of its rows: room for guesses
    step_timeout_s: float = 15.0  # silence after which a rank that does not compute is killed; see child_link.py
