"""Read attention windows: one for all layers, or by layer from `layer_types` or from a family's rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.kernels.interface import AttentionWindow
from engine.models.config import ModelConfig
from engine.models.fields import Fields

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


def read_window(fields: Fields) -> AttentionWindow:
    """Return a window of `sliding_window` positions, or full attention if the field is absent."""
    return AttentionWindow(fields.whole("sliding_window", 1, 1 << 26) if "sliding_window" in fields else None)


def with_window(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Return a copy with the same window in every layer."""
    window = read_window(fields)
    return config.with_layers(lambda _, layer: replace(layer, window=window))


def with_windows(config: ModelConfig, fields: Fields, is_windowed: Callable[[int], bool]) -> ModelConfig:
    """Return a copy with a window in the layers listed in `layer_types`, or else selected by `is_windowed`."""
    kinds = layer_types(config, fields, lambda index: SLIDING if is_windowed(index) else FULL)
    window = read_window(fields)
    return config.with_layers(lambda index, layer: replace(layer, window=window) if kinds[index] == SLIDING else layer)


def layer_types(config: ModelConfig, fields: Fields, rule: Callable[[int], str]) -> tuple[str, ...]:
    """Return the kind of each layer, from `layer_types` or else from the family's rule."""
    if "layer_types" in fields:
        return fields.words("layer_types", config.num_layers, (FULL, SLIDING, CHUNKED))
    return tuple(rule(index) for index in range(config.num_layers))
