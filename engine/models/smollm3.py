"""SmolLM 3: Llama without positions in every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig
from engine.models.fields import Fields
from engine.models.llama import llama


def smollm3(fields: Fields) -> ModelConfig:
    config = llama(
        fields.with_defaults(
            tie_word_embeddings=True, rope_theta=2e6, num_key_value_heads=4, max_position_embeddings=32_768
        )
    )
    has_positions = read_layers_with_positions(config, fields)
    return config.with_layers(lambda i, layer: layer if has_positions[i] else replace(layer, positions=None))


def read_layers_with_positions(config: ModelConfig, fields: Fields) -> tuple[bool, ...]:
    """Return True for each layer that has positions.

    Despite its name, `no_rope_layers` has a 1 for each layer with positions.
    """
    if fields.raw.get("no_rope_layers"):
        return fields.switches("no_rope_layers", config.num_layers)
    period = fields.whole("no_rope_layer_interval", 1, 1 << 16, default=4)
    return tuple((index + 1) % period != 0 for index in range(config.num_layers))
