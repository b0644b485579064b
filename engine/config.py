"""EngineConfig: the settings of one replica, and defaults that depend on the device. Imports neither torch nor NumPy.

Properties of the model (layers, heads, vocabulary) are read from its `config.json` by `engine/models/config.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_SPECULATION = "off"  # if neither a card nor a setting names one
DRAFT = "draft:"
AUTO = "auto"
ATTENTION_BACKENDS = ("auto", "triton", "torch")
FLOAT8_KV = "fp8"
KV_DTYPES = (AUTO, FLOAT8_KV)
FLOAT8_CAPABILITY = (8, 9)  # smallest compute capability of a GPU that has 8-bit floats


def default_sequences(device: str) -> int:
    """Return the default number of sequences that a model generates at once."""
    return 256 if device == "cuda" else 64


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one replica.

    `dtype` "auto" is the fastest type on this machine that preserves the checkpoint's precision; "float32" is for
    parity tests. `kv_dtype` "auto" is the model's type, "fp8" 8-bit floats (e4m3) with scales. `num_blocks` 0 derives
    the KV pool from `kv_memory_bytes`, which all ranks share; with `is_kv_auto` the pool takes what is free, at most
    `kv_memory_bytes` unless that is 0. `max_model_len` 0 is the model's own context.
    """

    model_dir: Path
    dtype: str = "auto"  # auto | float32 | bfloat16
    kv_dtype: str = "auto"  # one of KV_DTYPES
    device: str = "cpu"
    attention: str = "auto"  # one of ATTENTION_BACKENDS
    block_size: int = 16  # tokens per block
    num_blocks: int = 0
    kv_memory_bytes: int = 256 * 1024 * 1024
    is_kv_auto: bool = False
    max_sequences: int = 64  # slots: running sequences
    max_waiting: int = 1024  # sequences queued behind the running ones
    max_step_tokens: int = 512  # budget of one step: decode rows first, prefill chunks fill the rest
    max_model_len: int = 0
    num_threads: int = 1  # total of all ranks; each rank has at least one
    tensor_parallel: int = 1  # ranks that share the model, each with a part of its heads, experts and vocabulary
    is_prefix_cache_enabled: bool = True
    adapter_memory_bytes: int = 512 * 1024 * 1024  # LoRA matrices; least recently used idle adapters are evicted
    has_graphs: bool = True  # steps on a GPU are captured in CUDA graphs; False queues every kernel separately
    sleeps: bool = False  # memory is allocated so that the model can give it back while it sleeps
    speculation: str = "off"  # off | prompt_lookup | draft:<folder of a smaller model with the same tokenizer>
    free_step_tokens: int = 16  # tokens a step computes at about the cost of its rows alone: room for draft tokens
    step_timeout_s: float = 15.0  # a rank that does not respond or compute for so long is killed; see child_link.py
