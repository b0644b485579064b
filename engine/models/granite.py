"""Granite: Llama with multipliers of embeddings, scores, residuals and logits."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig
from engine.models.fields import Fields
from engine.models.llama import llama


def granite(fields: Fields) -> ModelConfig:
    def multiplier(name: str) -> float:
        return fields.number(name, 1e-9, 1e9, default=1.0)

    return replace(
        llama(fields).with_attention(scale=multiplier("attention_multiplier")),
        embedding_multiplier=multiplier("embedding_multiplier"),
        residual_multiplier=multiplier("residual_multiplier"),
        logit_multiplier=1 / multiplier("logits_scaling"),
    )
