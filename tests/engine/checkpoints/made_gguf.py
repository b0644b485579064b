"""GGUF files of tiny random models, written with the format's own library and changed as its converters change them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from tests.engine.made_checkpoints import save_random

# Kind of checkpoint -> GGUF's architecture, and what makes it one that GGUF files can say.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("llama", {"num_key_value_heads": 2}),
    "llama 3 with scaled positions": ("llama", {"max_position_embeddings": 131072, "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}}),
    "tied, with biases": ("llama", {}),
    "wide heads": ("llama", {}),
    "linear positions": ("llama", {}),
    "mistral without window": ("llama", {}),
    "mixtral": ("llama", {"sliding_window": None}),
    "qwen2 without window": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen2 moe": ("qwen2moe", {"mlp_only_layers": [], "moe_intermediate_size": 32,
                               "shared_expert_intermediate_size": 64}),
    "qwen3 moe": ("qwen3moe", {"decoder_sparse_step": 1, "moe_intermediate_size": 32}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 10}),
    "gemma3": ("gemma3", {"query_pre_attn_scalar": 10, "num_hidden_layers": 7, "layer_types": None, "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0}}}),
    "phi3": ("phi3", {}),
    "phi3 with long positions": ("phi3", {"hidden_size": 96, "num_attention_heads": 4, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
        "short_factor": [1.0, 1.3, 2.0, 1, 1, 1], "long_factor": [1.5, 3.0, 7.0, 8, 9, 9]}}),
}  # fmt: skip
_WIDTHS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
_EXPERT = re.compile(r"(.*experts\.)(\d+)\.(.*)")
_PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def write_random(kind: str, folder: Path, quantization: str = "F32", **changes: Any) -> tuple[Path, torch.nn.Module]:
    """A GGUF file of a random model in a folder of its own, and the model."""
    architecture, facts = KINDS[kind]
    source = folder / "source"
    model = save_random(kind, source, **(_WIDTHS | facts | changes))
    path = folder / "only" / "model.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, architecture, source, quantization)
    return path, model


def write(
    path: Path, architecture: str, source: Path, quantization: str, vocabulary: dict[str, Any] | None = None
) -> None:
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    _add_facts(writer, config, architecture)
    for key, value in (vocabulary or {}).items():
        writer.add_key_value(f"tokenizer.{key}", *_typed(value))
    for name, array in _arrays(source, config, architecture):
        kind = gguf.GGMLQuantizationType[quantization]
        if array.ndim == 1 or array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _typed(value: Any) -> tuple[Any, ...]:
    kinds = {bool: "BOOL", str: "STRING", int: "UINT32", float: "FLOAT32"}
    if isinstance(value, list):
        inner = {str: "STRING", int: "INT32", float: "FLOAT32"}[type(value[0])]
        return value, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType[inner]
    return value, gguf.GGUFValueType[kinds[type(value)]]


def _add_facts(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    rope = config.get("rope_parameters") or {}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(head_dim)
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if config.get("sliding_window") and architecture in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(config["sliding_window"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    num_experts = config.get("num_local_experts") or config.get("num_experts")
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config.get("moe_intermediate_size", config["intermediate_size"]))
    if config.get("shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if rope.get("rope_type") == "longrope":
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])


def _arrays(source: Path, config: dict[str, Any], architecture: str) -> list[tuple[str, NDArray[np.float32]]]:
    """Names and numbers as a GGUF of this model has them."""
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    experts: dict[str, dict[int, NDArray[np.float32]]] = {}
    found = []
    for name, tensor in load_file(source / "model.safetensors").items():
        array = tensor.float().numpy()
        expert = _EXPERT.fullmatch(name)
        if expert:
            stem, part, suffix = expert[1], *expert[3].split(".")
            stem = stem.replace("block_sparse_moe", "mlp")
            experts.setdefault(f"{stem}{_PARTS.get(part, part)}.{suffix}", {})[int(expert[2])] = array
            continue
        found.append((name, array))
    for name, arrays in experts.items():
        found.append((name, np.stack([arrays[index] for index in sorted(arrays)])))
    renamed = []
    for name, array in found:
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        renamed.append((gguf_name, _converted(gguf_name, array, config, architecture)))
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "llama3":
        renamed.append(("rope_freqs.weight", _llama3_factors(rope, config)))
    if rope.get("rope_type") == "longrope":
        renamed.append(("rope_factors_long.weight", np.array(rope["long_factor"], np.float32)))
        renamed.append(("rope_factors_short.weight", np.array(rope["short_factor"], np.float32)))
    return renamed


def _converted(name: str, array: NDArray[np.float32], config: dict[str, Any], architecture: str) -> NDArray[np.float32]:
    if architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
        heads = config["num_attention_heads"] if ".attn_q." in name else config["num_key_value_heads"]
        halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return array + 1
    if name.endswith("ffn_gate_inp_shexp.weight"):
        return array.reshape(-1)
    return array


def _llama3_factors(rope: dict[str, Any], config: dict[str, Any]) -> NDArray[np.float32]:
    """Return the factors by which each wavelength becomes longer, computed like the converter does."""
    dim = config["head_dim"]
    original = rope["original_max_position_embeddings"]
    longest, shortest = original / rope["low_freq_factor"], original / rope["high_freq_factor"]
    factors = []
    for frequency in 1.0 / (rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)):
        wavelength = 2 * np.pi / frequency
        if wavelength < shortest:
            factors.append(1.0)
        elif wavelength > longest:
            factors.append(rope["factor"])
        else:
            smooth = original / wavelength - rope["low_freq_factor"]
            smooth /= rope["high_freq_factor"] - rope["low_freq_factor"]
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)
