"""Qwen 3: Llama with normalized query and key heads, and optionally sliding windows in the upper layers."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig
from engine.models.fields import Fields
from engine.models.llama import llama
from engine.models.qwen2 import with_upper_windows


def qwen3(fields: Fields) -> ModelConfig:
    return with_upper_windows(
        with_head_norms(llama(fields.with_defaults(head_dim=128, max_position_embeddings=32_768))), fields
    )


def with_head_norms(config: ModelConfig) -> ModelConfig:
    return config.with_layers(lambda _, layer: replace(layer, qk_norm="head"))
