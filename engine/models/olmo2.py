"""OLMo 2: Llama with norms after attention and feed-forward, and queries and keys normalized as a whole."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig, Names
from engine.models.fields import Fields
from engine.models.llama import llama

_NAMES = Names(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_feed_forward=None,
    after_feed_forward="post_feedforward_layernorm",
)


def olmo2(fields: Fields) -> ModelConfig:
    config = replace(llama(fields.with_defaults(rms_norm_eps=1e-5)), names=_NAMES)
    return config.with_layers(lambda _, layer: replace(layer, qk_norm="width"))
