"""Convert a GGUF header's metadata into the model's original `config.json`.

One table of keys for all families, and per family the values that llama.cpp has in code instead of files. Families
whose files are insufficient are rejected by name. Uses only tensor shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from engine.checkpoints.gguf_file import GgufError, GgufFile, read_gguf

_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
_REAL_KEYS = ("attention.layer_norm_rms_epsilon", "rope.freq_base")
_NEEDED = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")

# The three factors that Llama 3.1 and later publish; files contain the factors derived from them.
_LLAMA3_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_LLAMA3_KEYS = ("factor", *_LLAMA3_SCALING)

Raw = dict[str, Any]


def gguf_config(file: GgufFile) -> Raw:
    """Return the JSON object. Raises GgufError naming the architecture or the key."""
    family = _FAMILIES.get(file.architecture)
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        what = f"general.architecture={file.architecture[:50]!r}"
        raise GgufError(f"{file.path.name}: {what} is not supported in GGUF ({known} are)")
    config: Raw = {}
    for key, ours in _KEYS.items():
        value = _real(file, key) if key in _REAL_KEYS else _count(file, key)
        if ours in _NEEDED and not value:
            raise GgufError(f"{file.path.name}: {file.architecture}.{key} is missing, or 0")
        if value is not None:
            config[ours] = value
    config["vocab_size"] = _vocab_size(file)
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    for ours, key in (("bos_token_id", "bos"), ("eos_token_id", "eos")):
        token_id = _token_id(file, key)
        if token_id is not None:
            config[ours] = token_id
    _end_turns(file, config)
    _add_scaling(file, config)
    family(file, config)
    return config


def read_gguf_config(path: Path) -> Raw:
    return gguf_config(read_gguf(path))


def _count(file: GgufFile, key: str) -> int | None:
    """Return an integer of at least 0, or None if absent. Raises GgufError naming the key."""
    value = file.value(key)
    if isinstance(value, list):
        raise GgufError(f"{file.path.name}: {key} differs between layers, which is not supported")
    if value is not None and (type(value) is not int or not 0 <= value < 1 << 40):
        raise GgufError(f"{file.path.name}: {file.architecture}.{key}={str(value)[:50]!r}: expected a whole number")
    return value


def _real(file: GgufFile, key: str) -> float | None:
    """Return a number above 0, or None if absent. Raises GgufError naming the key."""
    value = file.value(key)
    if value is not None and (type(value) not in (int, float) or not 0 < value < math.inf):
        raise GgufError(f"{file.path.name}: {file.architecture}.{key}={str(value)[:50]!r}: expected a number above 0")
    return value


def _token_id(file: GgufFile, key: str) -> int | None:
    value = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
    if value is not None and type(value) is not int:
        raise GgufError(f"{file.path.name}: tokenizer.ggml.{key}_token_id={str(value)[:50]!r}: expected a token id")
    return value


def _end_turns(file: GgufFile, config: Raw) -> None:
    """Set the end tokens: a turn and a text may end with different tokens."""
    ends = [config.get("eos_token_id")]
    ends += [_token_id(file, key) for key in ("eot", "eom")]
    found = list(dict.fromkeys(token_id for token_id in ends if token_id is not None))
    if len(found) > 1:
        config["eos_token_id"] = found


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise GgufError(f"{file.path.name}: token_embd.weight is missing, or is no matrix")
    return embedding.shape[0]


def _add_scaling(file: GgufFile, config: Raw) -> None:
    """Add the scaling of positions beyond the original context."""
    kind, factor = file.value("rope.scaling.type"), _real(file, "rope.scaling.factor")
    if kind in (None, "none") or factor is None:
        return
    if kind not in ("linear", "yarn"):
        raise GgufError(f"{file.path.name}: rope.scaling.type={str(kind)[:50]!r} is not supported")
    scaling = {"rope_type": kind, "factor": factor}
    original = _count(file, "rope.scaling.original_context_length")
    if kind == "yarn" and original is not None:
        scaling["original_max_position_embeddings"] = original
    config["rope_scaling"] = scaling


def _llama(file: GgufFile, config: Raw) -> None:
    config["architectures"] = ["LlamaForCausalLM"]
    config.setdefault("rms_norm_eps", 1e-5)
    rotary_dim = _count(file, "rope.dimension_count")
    if "head_dim" not in config and rotary_dim is not None:
        config["head_dim"] = rotary_dim
    config["attention_bias"] = "blk.0.attn_output.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_down.bias" in file.tensors
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        config["rope_scaling"] = _llama3_scaling(file, _read_floats(file, "rope_freqs.weight"), config)
    num_experts = _count(file, "expert_count")
    if num_experts:
        config["architectures"] = ["MixtralForCausalLM"]
        config["num_local_experts"] = num_experts
        config["num_experts_per_tok"] = _count(file, "expert_used_count")
        config["sliding_window"] = None


def _llama3_scaling(file: GgufFile, factors: list[float], config: Raw) -> Raw:
    """Return the scaling rule that gives these factors. Raises GgufError if there is none."""
    theta, head_dim = float(config.get("rope_theta", 10000.0)), 2 * len(factors)
    for low, high, original in ((1.0, 4.0, 8192),):
        factor = max(factors)
        expected = [
            _llama3_factor(2 * math.pi * theta ** (2 * index / head_dim), factor, low, high, original)
            for index in range(len(factors))
        ]
        if np.allclose(expected, factors, rtol=1e-3):
            values = (factor, low, high, original)
            return {"rope_type": "llama3", **dict(zip(_LLAMA3_KEYS, values, strict=True))}
    raise GgufError(f"{file.path.name}: rope_freqs.weight scales positions by a rule that is not known here")


def _llama3_factor(wavelength: float, factor: float, low: float, high: float, original: int) -> float:
    """Return the divisor of the frequency with this wavelength."""
    rotations = original / wavelength
    if rotations < low:
        return factor
    if rotations > high:
        return 1.0
    blend = (rotations - low) / (high - low)
    return 1.0 / ((1 - blend) / factor + blend)


def _qwen2(_file: GgufFile, config: Raw) -> None:
    config["architectures"] = ["Qwen2ForCausalLM"]
    config["use_sliding_window"] = False


def _qwen3(file: GgufFile, config: Raw) -> None:
    config["architectures"] = ["Qwen3ForCausalLM"]
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["use_sliding_window"] = False


def _mixture(file: GgufFile, config: Raw) -> None:
    config["num_experts"] = _count(file, "expert_count")
    config["num_experts_per_tok"] = _count(file, "expert_used_count")
    config["moe_intermediate_size"] = _count(file, "expert_feed_forward_length")
    config["decoder_sparse_step"] = 1
    config["use_sliding_window"] = False


def _qwen2_moe(file: GgufFile, config: Raw) -> None:
    _mixture(file, config)
    config["architectures"] = ["Qwen2MoeForCausalLM"]
    shared = file.tensors.get("blk.0.ffn_gate_shexp.weight")
    config["shared_expert_intermediate_size"] = _count(file, "expert_shared_feed_forward_length") or (
        shared.shape[0] if shared is not None else None
    )
    config["norm_topk_prob"] = False


def _qwen3_moe(file: GgufFile, config: Raw) -> None:
    _mixture(file, config)
    config["architectures"] = ["Qwen3MoeForCausalLM"]
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["norm_topk_prob"] = True


def _gemma(file: GgufFile, config: Raw) -> None:
    config["hidden_activation"] = "gelu_pytorch_tanh"
    config.setdefault("head_dim", 256)
    config["sliding_window"] = _count(file, "attention.sliding_window") or 4096


def _gemma2(file: GgufFile, config: Raw) -> None:
    _gemma(file, config)
    config["architectures"] = ["Gemma2ForCausalLM"]
    config["attn_logit_softcapping"] = _real(file, "attn_logit_softcapping") or 50.0
    config["final_logit_softcapping"] = _real(file, "final_logit_softcapping") or 30.0
    # 27B, with 46 layers, divides scores by the root of width over heads; other sizes by that of the head size.
    config["query_pre_attn_scalar"] = _scalar(config, num_layers=46)


def _gemma3(file: GgufFile, config: Raw) -> None:
    _gemma(file, config)
    config["architectures"] = ["Gemma3ForCausalLM"]
    config["query_pre_attn_scalar"] = _scalar(config, num_layers=62)
    config["sliding_window_pattern"] = 6
    config["rope_local_base_freq"] = _real(file, "rope.freq_base_swa") or 10000.0
    config.setdefault("rope_theta", 1e6)


def _scalar(config: Raw, num_layers: int) -> float:
    if config["num_hidden_layers"] == num_layers:
        return float(config["hidden_size"] // config["num_attention_heads"])
    return float(config["head_dim"])


def _phi3(file: GgufFile, config: Raw) -> None:
    config["architectures"] = ["Phi3ForCausalLM"]
    config["sliding_window"] = _count(file, "attention.sliding_window") or None
    config.setdefault("rms_norm_eps", 1e-5)
    rotary_dim, head_dim = _count(file, "rope.dimension_count"), config.get("head_dim")
    head_dim = head_dim or max(config["hidden_size"] // config["num_attention_heads"], 1)
    if rotary_dim is not None and rotary_dim != head_dim:
        config["partial_rotary_factor"] = rotary_dim / head_dim
    if "rope_factors_long.weight" in file.tensors:
        config["original_max_position_embeddings"] = _count(file, "rope.scaling.original_context_length")
        config["rope_scaling"] = {
            "rope_type": "longrope",
            "short_factor": _read_floats(file, "rope_factors_short.weight"),
            "long_factor": _read_floats(file, "rope_factors_long.weight"),
        }
        attention_factor = _real(file, "rope.scaling.attn_factor")
        if attention_factor:
            config["rope_scaling"]["attention_factor"] = attention_factor


_FAMILIES: dict[str, Callable[[GgufFile, Raw], None]] = {
    "llama": _llama,  # also mistral and mixtral, which files do not distinguish
    "qwen2": _qwen2,
    "qwen2moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
}


def _read_floats(file: GgufFile, name: str) -> list[float]:
    """Read a short float32 tensor."""
    tensor = file.tensors.get(name)
    if tensor is None or tensor.kind != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > 1024:
        raise GgufError(f"{file.path.name}: {name} is missing, or is no short list of F32")
    try:
        with tensor.path.open("rb") as opened:
            opened.seek(tensor.offset)
            data = opened.read(tensor.size_bytes)
    except OSError as error:
        raise GgufError(f"{file.path.name} cannot be read: {error.strerror}") from None
    values: list[float] = np.frombuffer(data, "<f4").astype(float).tolist()
    if len(values) != tensor.shape[0] or not all(math.isfinite(value) and value > 0 for value in values):
        raise GgufError(f"{file.path.name}: {name} does not hold factors")
    return values
