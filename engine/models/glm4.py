"""GLM 4: Llama with norms before and after attention and feed-forward, interleaved rotary pairs on half of each head,
biases on queries, keys and values, and a fused feed-forward."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig, Names
from engine.models.fields import Fields
from engine.models.llama import llama
from engine.models.rope_fields import with_interleaved_pairs

_NAMES = Names(
    gate_up=("gate_up_proj",),
    after_attention="post_self_attn_layernorm",
    after_feed_forward="post_mlp_layernorm",
)


def glm4(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(
        attention_bias=True,
        head_dim=128,
        num_key_value_heads=2,
        partial_rotary_factor=0.5,
        rms_norm_eps=1.5625e-07,
        max_position_embeddings=131_072,
    )
    config = llama(fields, can_be_partial=True).with_attention(has_output_bias=False)
    return replace(with_interleaved_pairs(config), names=_NAMES)
