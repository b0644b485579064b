"""Mistral: Llama with a sliding window in every layer. Mixtral adds mixtures of experts; Mistral 3's text part is
Mistral."""

from __future__ import annotations

from dataclasses import replace

from engine.kernels.interface import Activation
from engine.layers.config import ExpertNames, MoeConfig
from engine.models.config import ModelConfig, Names
from engine.models.fields import Fields
from engine.models.llama import llama, read_activation
from engine.models.mixtures import read_num_experts, read_router, with_mixture
from engine.models.sliding_window import with_window

_EXPERTS = ExpertNames(gate="w1", up="w3", down="w2")
_IMAGE_TENSORS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def mistral(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(sliding_window=4096, num_key_value_heads=8, max_position_embeddings=131_072)
    return with_window(llama(fields), fields)


def mistral3(fields: Fields) -> ModelConfig:
    if fields.word("model_type", "mistral") != "mistral":
        raise fields.refusal("model_type", "not supported as the text part of this architecture (mistral is)")
    return replace(mistral(fields), ignored=_IMAGE_TENSORS)


def mixtral(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(
        rope_theta=1e6, rms_norm_eps=1e-5, num_key_value_heads=8, max_position_embeddings=131_072
    )
    config = replace(with_window(llama(fields), fields), names=Names(mixture="block_sparse_moe"))
    num_experts = read_num_experts(fields, "num_local_experts", "num_experts")
    moe = MoeConfig(
        num_experts,
        fields.whole("intermediate_size", 1, 1 << 20),
        read_router(fields, num_experts, default=min(2, num_experts)),
        Activation(read_activation(fields)),
        names=_EXPERTS,
    )
    return with_mixture(config, moe, lambda _: True)
