"""SmolLM 3: Llama without positions in every fourth layer, and optionally with a sliding window there."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import LayerConfig, ModelConfig
from engine.models.fields import Fields
from engine.models.llama import llama
from engine.models.sliding_window import with_windows


def smollm3(fields: Fields) -> ModelConfig:
    config = llama(
        fields.with_defaults(
            tie_word_embeddings=True, rope_theta=2e6, num_key_value_heads=4, max_position_embeddings=32_768
        )
    )
    is_turning = read_turning(config, fields)
    if fields.flag("use_sliding_window"):
        config = with_windows(config, fields, lambda index: not is_turning[index])

    def change(index: int, layer: LayerConfig) -> LayerConfig:
        return layer if is_turning[index] else replace(layer, positions=None)

    return config.with_layers(change)


def read_turning(config: ModelConfig, fields: Fields) -> tuple[bool, ...]:
    """Which layers have positions: `no_rope_layers` holds a 1 for each that has, despite its name."""
    if fields.raw.get("no_rope_layers"):
        return fields.switches("no_rope_layers", config.num_layers)
    period = fields.whole("no_rope_layer_interval", 1, 1 << 16, default=4)
    return tuple((index + 1) % period != 0 for index in range(config.num_layers))
