"""Gemma 2: Llama with norms before and after attention and feed-forward, norm weights stored minus one, embeddings
scaled with the width, soft-capped scores and logits, and a sliding window in every other layer."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig, Names
from engine.models.fields import Fields
from engine.models.llama import llama
from engine.models.sliding_window import with_windows

_NAMES = Names(
    after_attention="post_attention_layernorm",
    before_feed_forward="pre_feedforward_layernorm",
    after_feed_forward="post_feedforward_layernorm",
)


def gemma2(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(
        sliding_window=4096,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        num_key_value_heads=4,
        max_position_embeddings=8192,
    )
    config = gemma(fields).with_attention(softcap=read_cap(fields, "attn_logit_softcapping"))
    return with_windows(config, fields, lambda index: index % 2 == 0)


def gemma(fields: Fields) -> ModelConfig:
    """Return the common configuration of Gemma 2 and 3."""
    if fields.raw.get("use_bidirectional_attention"):
        raise fields.refusal("use_bidirectional_attention", "text generation looks back only")
    activation = fields.word("hidden_activation", "gelu_pytorch_tanh")
    fields = fields.with_defaults(tie_word_embeddings=True, head_dim=256, query_pre_attn_scalar=256)
    config = llama(Fields({**fields.raw, "hidden_act": activation}, fields.where))
    return replace(
        config.with_attention(scale=fields.number("query_pre_attn_scalar", 1e-6, 1e9) ** -0.5),
        norm=replace(config.norm, offset=1.0),
        names=_NAMES,
        embedding_multiplier=config.hidden_size**0.5,
        logit_softcap=read_cap(fields, "final_logit_softcapping"),
    )


def read_cap(fields: Fields, name: str) -> float | None:
    return fields.number(name, 1e-6, 1e9) if name in fields else None
