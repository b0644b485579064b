"""Tiny random checkpoints that transformers writes and answers for, and a way to push tokens through our runner.

transformers is imported here and nowhere in the engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from engine.config import EngineConfig
from engine.kernels.reference import Kernels
from engine.runner import Runner
from tests.engine import one_thread  # noqa: F401
from tests.engine.pusher import Pusher

__all__ = ["KINDS", "Pusher", "runner_of", "save_random", "save_random_with_images"]

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
    "pad_token_id": None,
}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
_MIXTURE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
_LATENT = {"kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
           "num_key_value_heads": 6, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3,
           "moe_intermediate_size": 20, "first_k_dense_replace": 1, "routed_scaling_factor": 1.7}  # fmt: skip
_LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
             "short_factor": [1.0, 1.3, 2.0], "long_factor": [1.5, 3.0, 7.0]}  # fmt: skip

# Kind of checkpoint -> the family, as transformers names its classes, and what sets the kind apart.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("Llama", {"num_key_value_heads": 6}),
    "llama 3 with scaled positions": ("Llama", {"rope_parameters": _LLAMA3}),
    "tied, with biases": ("Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "wide heads": ("Llama", {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 1}),
    "linear positions": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
    "yarn positions": ("Llama", {"rope_parameters": _YARN}),
    "mistral": ("Mistral", {"sliding_window": 9, "head_dim": 12}),
    "mistral without window": ("Mistral", {"sliding_window": None}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 20}),
    "qwen2": ("Qwen2", {}),
    "qwen2 without window": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
    "qwen2 moe": ("Qwen2Moe", _MIXTURE | {"shared_expert_intermediate_size": 28, "mlp_only_layers": [1]}),
    "qwen3 moe": ("Qwen3Moe", _MIXTURE | {"head_dim": 12, "norm_topk_prob": True, "decoder_sparse_step": 2}),
    "gemma2": ("Gemma2", {"head_dim": 10, "sliding_window": 9, "query_pre_attn_scalar": 20,
                          "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3", {"head_dim": 10, "sliding_window": 9, "query_pre_attn_scalar": 20, "layer_types": _ALTERNATING,
                          "rope_parameters": {
                              "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                              "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0}}}),
    "phi3": ("Phi3", {"sliding_window": 14, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}}),
    "phi3 with long positions": ("Phi3", {"num_attention_heads": 4, "rope_parameters": _LONGROPE,
                                          "original_max_position_embeddings": 32}),
    "olmo2": ("Olmo2", {"attention_bias": True}),
    "granite": ("Granite", {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
                            "logits_scaling": 1.7, "attention_bias": True, "mlp_bias": True}),
    "glm4": ("Glm4", {"head_dim": 12, "attention_bias": True}),
    "gpt-oss": ("GptOss", {"head_dim": 14, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 9,
                           "rope_parameters": _YARN | {"truncate": False}, "swiglu_limit": 0.9}),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
    "starcoder2": ("Starcoder2", {"sliding_window": 10}),
    "cohere2": ("Cohere2", {"sliding_window": 9, "layer_types": _ALTERNATING, "logit_scale": 0.3}),
    "deepseek v2": ("DeepseekV2", _LATENT | {"q_lora_rank": None, "topk_method": "group_limited_greedy"}),
    "deepseek v2 with stretched positions": ("DeepseekV2", _LATENT | {
        "q_lora_rank": 20, "rope_parameters": _YARN | {"mscale": 0.8, "mscale_all_dim": 0.7}}),
    "deepseek v3": ("DeepseekV3", _LATENT | {"q_lora_rank": 20, "rope_parameters": _YARN | {
        "mscale": 1.0, "mscale_all_dim": 1.0}}),
    "llama4": ("Llama4", {"head_dim": 12, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size_mlp": 40,
                          "moe_layers": [0, 2], "no_rope_layer_interval": 2, "attention_chunk_size": 13,
                          "floor_scale": 8, "attn_scale": 0.5,
                          "rope_parameters": _LLAMA3 | {"high_freq_factor": 1.0}}),
}  # fmt: skip
# Those whose config class is not named after the model's.
_CONFIGS = {"Gemma3": "Gemma3TextConfig", "Llama4": "Llama4TextConfig"}


def save_random(kind: str, folder: Path, *, is_original: bool = True, **changes: Any) -> PreTrainedModel:
    """Write a random float32 model of `kind` to `folder` and return it, in eager attention.

    Not `is_original`: under the names that transformers 5 has in memory, where they differ from published ones.
    """
    family, settings = KINDS[kind]
    config_class = getattr(transformers, _CONFIGS.get(family, f"{family}Config"))
    config = config_class(**(_COMMON | settings | changes), attn_implementation="eager")
    config.eos_token_id = changes.get("eos_token_id")  # some classes have their own for None
    torch.manual_seed(sum(kind.encode()))
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():  # norms and biases start at 1 and 0, which would hide their being mixed up
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "norm" in name or name.endswith(("bias", "sinks")):
                tensor.add_(torch.randn_like(tensor) * 0.3)
    model.save_pretrained(folder, save_original_format=is_original)
    return model.eval()


def save_random_with_images(kind: str, folder: Path) -> PreTrainedModel:
    """Save random weights like `save_random`: the text part of a model that also accepts images."""
    family, settings = KINDS[kind]
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    widths = ("hidden_size", "vision_output_dim", "projector_input_dim", "projector_output_dim")
    vision = sizes | dict.fromkeys(widths, 16) | {"intermediate_size": 64}
    text = _COMMON | settings
    if kind == "mistral":
        family, text, vision = (
            "Mistral3",
            text | {"model_type": kind},
            vision | {"model_type": "pixtral", "head_dim": 8},
        )
    config_class = getattr(transformers, f"{family}Config")
    config = config_class(text_config=text, vision_config=vision, image_token_index=190)
    torch.manual_seed(sum(kind.encode()))
    model_class = getattr(transformers, f"{family}ForConditionalGeneration")
    model: PreTrainedModel = model_class._from_config(config, attn_implementation="eager")
    model.save_pretrained(folder)
    return model.eval()


def runner_of(folder: Path, kernels: Kernels | None = None, **settings: Any) -> Runner:
    defaults: dict[str, Any] = {"dtype": "float32", "num_blocks": 64}
    return Runner(EngineConfig(model_dir=folder, **(defaults | settings)), kernels)
