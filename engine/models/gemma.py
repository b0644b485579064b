"""Gemma 2, and the text part of Gemma 3.

Both are Llama with norms before and after attention and feed-forward, norm weights stored minus one, and embeddings
scaled with the width. Gemma 2 has soft-capped scores and logits, and a sliding window in every other layer. Gemma 3
normalizes query and key heads instead, and has sliding windows with their own rotary frequencies in five of six layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.models.config import LayerConfig, ModelConfig, Names, RopeConfig
from engine.models.fields import Fields
from engine.models.llama import llama
from engine.models.qwen import with_head_norms
from engine.models.rope_fields import read_rope
from engine.models.sliding_window import FULL, SLIDING, layer_types, read_window, with_windows

_NAMES = Names(
    after_attention="post_attention_layernorm",
    before_feed_forward="pre_feedforward_layernorm",
    after_feed_forward="post_feedforward_layernorm",
)
# Published configs of the larger Gemma 3 models leave these fields out.
_GEMMA3_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_IMAGE_TENSORS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def gemma2(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(
        sliding_window=4096,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        num_key_value_heads=4,
        max_position_embeddings=8192,
    )
    config = _gemma(fields).with_attention(softcap=_read_softcap(fields, "attn_logit_softcapping"))
    return with_windows(config, fields, lambda index: index % 2 == 0)


def gemma3(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(**_GEMMA3_DEFAULTS)
    without_rope = {
        name: value for name, value in fields.raw.items() if name not in ("rope_parameters", "rope_scaling")
    }
    config = with_head_norms(_gemma(Fields(without_rope, fields.where)))
    ignored = (*_IMAGE_TENSORS, "language_model.lm_head.") if config.is_head_tied else _IMAGE_TENSORS
    period = fields.whole("sliding_window_pattern", 1, 1 << 16, default=6)
    kinds = layer_types(config, fields, lambda index: SLIDING if (index + 1) % period else FULL)
    window, local, full = read_window(fields), *_read_ropes(fields, config)

    def change(index: int, layer: LayerConfig) -> LayerConfig:
        if kinds[index] == SLIDING:
            return replace(layer, window=window, positions=local)
        return replace(layer, positions=full)

    return replace(config.with_layers(change), ignored=ignored)


def _gemma(fields: Fields) -> ModelConfig:
    """Return the common configuration of Gemma 2 and 3."""
    if fields.raw.get("use_bidirectional_attention"):
        raise fields.refusal("use_bidirectional_attention", "not supported: text generation needs causal attention")
    activation = fields.word("hidden_activation", "gelu_pytorch_tanh")
    fields = fields.with_defaults(tie_word_embeddings=True, head_dim=256, query_pre_attn_scalar=256)
    config = llama(Fields({**fields.raw, "hidden_act": activation}, fields.where))
    return replace(
        config.with_attention(scale=fields.number("query_pre_attn_scalar", 1e-6, 1e9) ** -0.5),
        norm=replace(config.norm, offset=1.0),
        names=_NAMES,
        embedding_multiplier=config.hidden_size**0.5,
        logit_softcap=_read_softcap(fields, "final_logit_softcapping"),
    )


def _read_softcap(fields: Fields, name: str) -> float | None:
    return fields.number(name, 1e-6, 1e9) if name in fields else None


def _read_ropes(fields: Fields, config: ModelConfig) -> tuple[RopeConfig, RopeConfig]:
    """Return the positions of layers with a sliding window and of the others.

    `rope_parameters` has an object for each, or transformers 4 wrote the fields side by side.
    """
    parameters = fields.inner("rope_parameters")
    local, full = parameters.inner(SLIDING).raw, parameters.inner(FULL).raw
    if not local and not full:
        local = {"rope_theta": fields.number("rope_local_base_freq", 1.001, 1e12, default=1e4)}
        scaling = parameters.raw or fields.inner("rope_scaling").raw
        full = {"rope_theta": fields.number("rope_theta", 1.001, 1e12, default=1e6), **scaling}

    def read(theta: float, values: Mapping[str, Any]) -> RopeConfig:
        own = Fields({"rope_parameters": {"rope_theta": theta, **values}}, fields.where)
        return read_rope(own, config.attention.head_dim, config.max_positions)

    return read(1e4, local), read(1e6, full)
