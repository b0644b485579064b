"""Qwen 2 MoE: Qwen 2 with mixtures of experts beside a gated shared expert."""

from __future__ import annotations

from dataclasses import replace

from engine.kernels.interface import Activation
from engine.layers.config import MlpConfig, MoeConfig
from engine.models.config import ModelConfig
from engine.models.fields import Fields
from engine.models.llama import llama, read_activation
from engine.models.mixtures import read_num_experts, read_router, with_mixture
from engine.models.sliding_window import with_windows


def qwen2_moe(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(max_position_embeddings=32_768)
    config = llama(fields).with_attention(has_bias=fields.flag("qkv_bias", default=True), has_output_bias=False)
    if fields.flag("use_sliding_window"):
        last = fields.whole("max_window_layers", 0, 1 << 16, default=28)
        fields = fields.with_defaults(sliding_window=4096)
        config = with_windows(config, fields, lambda index: index % 2 == 0 and index < last)
    moe = read_qwen_mixture(fields)
    shared = MlpConfig(fields.whole("shared_expert_intermediate_size", 1, 1 << 20), moe.activation)
    return with_qwen_mixture(config, fields, replace(moe, shared=shared, is_shared_gated=True))


def read_qwen_mixture(fields: Fields) -> MoeConfig:
    num_experts = read_num_experts(fields, "num_experts", "num_local_experts")
    is_normalized = fields.flag("norm_topk_prob")
    return MoeConfig(
        num_experts,
        fields.whole("moe_intermediate_size", 1, 1 << 20),
        replace(read_router(fields, num_experts), is_normalized=is_normalized),
        Activation(read_activation(fields)),
    )


def with_qwen_mixture(config: ModelConfig, fields: Fields, moe: MoeConfig) -> ModelConfig:
    """In every `decoder_sparse_step`th layer that `mlp_only_layers` does not except."""
    plain = fields.indices("mlp_only_layers", config.num_layers)
    step = fields.whole("decoder_sparse_step", 1, 1 << 16, default=1)
    return with_mixture(config, moe, lambda index: index not in plain and (index + 1) % step == 0)
