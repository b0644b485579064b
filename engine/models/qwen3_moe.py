"""Qwen 3 MoE: Qwen 3 with mixtures of experts; a sliding window applies to every layer."""

from __future__ import annotations

from engine.models.config import ModelConfig
from engine.models.fields import Fields
from engine.models.llama import llama
from engine.models.qwen2_moe import read_qwen_mixture, with_qwen_mixture
from engine.models.qwen3 import with_head_norms
from engine.models.sliding_window import with_window


def qwen3_moe(fields: Fields) -> ModelConfig:
    config = with_head_norms(llama(fields.with_defaults(num_key_value_heads=4, max_position_embeddings=32_768)))
    if fields.flag("use_sliding_window"):
        config = with_window(config, fields.with_defaults(sliding_window=4096))
    return with_qwen_mixture(config, fields, read_qwen_mixture(fields))
