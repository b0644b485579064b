"""Mistral: llama, except that every layer sees a window."""

from __future__ import annotations

from engine.models.config import ModelConfig
from engine.models.fields import Fields
from engine.models.llama import llama
from engine.models.reaches import with_window


def mistral(fields: Fields) -> ModelConfig:
    return with_window(llama(fields), fields.with_defaults(sliding_window=4096))
