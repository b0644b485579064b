"""Rotary frequencies as a model was trained: default, linear, llama3, yarn. Knows numbers, not who uses them."""

from __future__ import annotations

import math

import torch

from engine.models.config import RopeConfig


def rope_frequencies(rope: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """Radians per position, float32 [D/2], and what cosines and sines are multiplied by."""
    wavelengths = rope.theta ** (torch.arange(0, head_dim, 2).float() / head_dim)  # over 2 pi, [D/2]
    if rope.kind == "linear":
        return 1.0 / wavelengths / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, 1.0 / wavelengths), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, wavelengths, head_dim), _yarn_attention_factor(rope)
    return 1.0 / wavelengths, 1.0


def _llama3(rope: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """Long wavelengths stretched by `factor`, short ones kept, a linear blend between."""
    rotations = rope.original_max_positions * frequencies / (2 * math.pi)  # in the trained context, [D/2]
    blend = (rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1 - blend) * frequencies / rope.factor + blend * frequencies


def _yarn(rope: RopeConfig, wavelengths: torch.Tensor, head_dim: int) -> torch.Tensor:
    """As llama3, with the blend linear in the index of the frequency."""

    def index_of(num_rotations: float) -> float:
        turns = rope.original_max_positions / (num_rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = index_of(rope.beta_fast), index_of(rope.beta_slow)
    if rope.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low if high != low else 0.001
    stretched = ((torch.arange(head_dim // 2).float() - low) / span).clamp(0.0, 1.0)  # [D/2]
    return stretched / (rope.factor * wavelengths) + (1 - stretched) / wavelengths


def _yarn_attention_factor(rope: RopeConfig) -> float:
    def scale(mscale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * mscale * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)
