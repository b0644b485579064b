"""gpt-oss: Llama with attention sinks, biases everywhere, a sliding window in every other layer, and a mixture of
experts with a clamped gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.kernels.interface import Activation
from engine.layers.config import ExpertNames, MoeConfig
from engine.models.config import ModelConfig
from engine.models.fields import Fields
from engine.models.llama import llama, read_activation
from engine.models.mixtures import read_num_experts, read_router, with_mixture
from engine.models.sliding_window import with_windows

_EXPERTS = ExpertNames(router="router", is_stacked=True, is_interleaved=True)
_DEFAULTS: Mapping[str, Any] = {
    "attention_bias": True,
    "head_dim": 64,
    "max_position_embeddings": 131_072,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "sliding_window": 128,
}


def gpt_oss(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(**_DEFAULTS)
    config = with_windows(llama(fields), fields, lambda index: index % 2 == 0).with_attention(has_sinks=True)
    num_experts = read_num_experts(fields, "num_local_experts", "num_experts")
    moe = MoeConfig(
        num_experts,
        fields.whole("intermediate_size", 1, 1 << 20),
        replace(read_router(fields, num_experts, default=min(4, num_experts)), has_bias=True),
        Activation(
            read_activation(fields),
            limit=fields.number("swiglu_limit", 1e-6, 1e6, default=7.0),
            slope=fields.number("swiglu_alpha", 1e-6, 1e6, default=1.702),
        ),
        has_bias=True,
        names=_EXPERTS,
    )
    return with_mixture(config, moe, lambda _: True)
