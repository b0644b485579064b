"""Phi 3 and 4: Llama with fused matrices, optionally partial rotary positions, scaled by a list of factors, and
optionally a sliding window in every layer."""

from __future__ import annotations

from dataclasses import replace

from engine.models.config import ModelConfig, Names
from engine.models.fields import Fields
from engine.models.llama import llama
from engine.models.sliding_window import with_window

_NAMES = Names(qkv=("qkv_proj",), gate_up=("gate_up_proj",))


def phi3(fields: Fields) -> ModelConfig:
    config = llama(fields.with_defaults(rms_norm_eps=1e-5, max_position_embeddings=4096), can_be_partial=True)
    return replace(with_window(config, fields), names=_NAMES)
