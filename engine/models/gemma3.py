"""Gemma 3's text part: Gemma 2 with normalized query and key heads instead of soft caps, and sliding windows with
their own rotary frequencies in five of six layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.models.config import LayerConfig, ModelConfig, RopeConfig
from engine.models.fields import Fields
from engine.models.gemma2 import gemma
from engine.models.qwen3 import with_head_norms
from engine.models.rope_fields import read_rope
from engine.models.sliding_window import FULL, SLIDING, layer_types, read_window

# Published configs of the larger models leave these out.
_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_IMAGES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def gemma3(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(**_DEFAULTS)
    unturned = {name: value for name, value in fields.raw.items() if name not in ("rope_parameters", "rope_scaling")}
    config = with_head_norms(gemma(Fields(unturned, fields.where)))
    config = replace(config, ignored=(*_IMAGES, "language_model.lm_head.") if config.is_head_tied else _IMAGES)
    period = fields.whole("sliding_window_pattern", 1, 1 << 16, default=6)
    kinds = layer_types(config, fields, lambda index: SLIDING if (index + 1) % period else FULL)
    window, near, far = read_window(fields), *_ropes(fields, config)

    def change(index: int, layer: LayerConfig) -> LayerConfig:
        if kinds[index] == SLIDING:
            return replace(layer, window=window, positions=near)
        return replace(layer, positions=far)

    return config.with_layers(change)


def _ropes(fields: Fields, config: ModelConfig) -> tuple[RopeConfig, RopeConfig]:
    """Of layers with a window and of those without: as two objects, or in the spelling of transformers 4."""
    of_kinds = fields.inner("rope_parameters")
    near, far = of_kinds.inner(SLIDING).raw, of_kinds.inner(FULL).raw
    head_dim, max_positions = config.attention.head_dim, config.max_positions
    if not near and not far:
        near = {"rope_theta": fields.number("rope_local_base_freq", 1.001, 1e12, default=1e4)}
        scaling = of_kinds.raw or fields.inner("rope_scaling").raw
        far = {"rope_theta": fields.number("rope_theta", 1.001, 1e12, default=1e6), **scaling}
    near, far = {"rope_theta": 1e4, **near}, {"rope_theta": 1e6, **far}
    return (
        read_rope(Fields({"rope_parameters": near}, fields.where), head_dim, max_positions),
        read_rope(Fields({"rope_parameters": far}, fields.where), head_dim, max_positions),
    )
