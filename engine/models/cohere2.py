"""Command R7B and A: Llama with parallel attention and feed-forward after one layer norm, sliding windows and
interleaved rotary pairs in three of four layers, no positions in the fourth, and scaled logits."""

from __future__ import annotations

from dataclasses import replace

from engine.layers.config import NormConfig
from engine.models.config import LayerConfig, ModelConfig, Names
from engine.models.fields import Fields
from engine.models.llama import llama
from engine.models.rope_fields import with_interleaved_pairs
from engine.models.sliding_window import FULL, SLIDING, layer_types, read_window


def cohere2(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(tie_word_embeddings=True, sliding_window=4096, max_position_embeddings=8192)
    config = with_interleaved_pairs(llama(fields))
    period = fields.whole("sliding_window_pattern", 1, 1 << 16, default=4)
    kinds = layer_types(config, fields, lambda index: SLIDING if (index + 1) % period else FULL)
    window = read_window(fields)

    def change(index: int, layer: LayerConfig) -> LayerConfig:
        is_windowed = kinds[index] == SLIDING and window.size is not None
        return replace(layer, window=window) if is_windowed else replace(layer, positions=None)

    return replace(
        config.with_layers(change),
        norm=NormConfig("layer", fields.number("layer_norm_eps", 0.0, 1.0, default=1e-5)),
        names=Names(before_feed_forward=None),
        is_parallel=True,
        logit_multiplier=fields.number("logit_scale", 1e-9, 1e9, default=0.0625),
    )
