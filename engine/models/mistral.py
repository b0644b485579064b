"""Mistral: Llama with a sliding window in every layer. Mistral 3 uses it as its text part."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig
from engine.models.fields import Fields
from engine.models.llama import llama
from engine.models.sliding_window import with_window

_IMAGES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def mistral(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(sliding_window=4096, num_key_value_heads=8, max_position_embeddings=131_072)
    return with_window(llama(fields), fields)


def mistral3(fields: Fields) -> ModelConfig:
    if fields.word("model_type", "mistral") != "mistral":
        raise fields.refusal("model_type", "not supported as the text part of this architecture (mistral is)")
    return replace(mistral(fields), ignored=_IMAGES)
