"""Qwen 2 and 2.5: Llama with biases on queries, keys and values, and optionally sliding windows in the upper layers."""

from __future__ import annotations

from engine.models.config import ModelConfig
from engine.models.fields import Fields
from engine.models.llama import llama
from engine.models.sliding_window import with_windows


def qwen2(fields: Fields) -> ModelConfig:
    config = llama(fields.with_defaults(max_position_embeddings=32_768)).with_attention(
        has_bias=True, has_output_bias=False
    )
    return with_upper_windows(config, fields)


def with_upper_windows(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Windows from layer `max_window_layers` on, if `use_sliding_window`."""
    if not fields.flag("use_sliding_window"):
        return config
    first = fields.whole("max_window_layers", 0, 1 << 16, default=28)
    return with_windows(config, fields.with_defaults(sliding_window=4096), lambda index: index >= first)
