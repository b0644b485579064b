"""Compute rotary frequencies: default, linear, llama3, yarn, longrope."""

from __future__ import annotations

import math

import torch

from engine.models.config import RopeConfig


def rope_frequencies(rope: RopeConfig, head_dim: int, max_model_len: int) -> tuple[torch.Tensor, float]:
    """Return radians per position, float32 [rotary size / 2], and the factor of cosines and sines.

    Long RoPE has two sets of factors: the long set is used if `max_model_len` exceeds the original context.
    """
    width = rope.rotary_dim or head_dim
    wavelengths = rope.theta ** (torch.arange(0, width, 2).float() / width)  # over 2 pi, [D/2]
    if rope.kind == "linear":
        return 1.0 / wavelengths / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, 1.0 / wavelengths), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, wavelengths, width), _yarn_attention_factor(rope)
    if rope.kind == "longrope":
        factors = torch.tensor(rope.long_factors if rope.is_long_for(max_model_len) else rope.short_factors)
        return 1.0 / (factors * wavelengths), _longrope_attention_factor(rope)
    return 1.0 / wavelengths, 1.0


def head_order(rope: RopeConfig, head_dim: int) -> torch.Tensor | None:
    """Return int64 [D]: the source of each number of a head, so that numbers i and i + D/2 are rotated together.

    Numbers that are not rotated fill the end of both halves. Returns None if heads already have this order.
    """
    width = rope.rotary_dim or head_dim
    if width == head_dim and not rope.is_interleaved:
        return None
    rotated = torch.arange(width)
    first, second = (rotated[::2], rotated[1::2]) if rope.is_interleaved else rotated.chunk(2)
    unrotated = torch.arange(width, head_dim).chunk(2) if width < head_dim else (rotated[:0], rotated[:0])
    return torch.cat((first, unrotated[0], second, unrotated[1]))


def _llama3(rope: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """Divide low frequencies by `factor`, keep high ones, and blend linearly between them."""
    rotations = rope.original_max_positions * frequencies / (2 * math.pi)  # in the trained context, [D/2]
    span = max(rope.high_freq_factor - rope.low_freq_factor, 1e-9)
    blend = ((rotations - rope.low_freq_factor) / span).clamp(0.0, 1.0)
    return (1 - blend) * frequencies / rope.factor + blend * frequencies


def _yarn(rope: RopeConfig, wavelengths: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Scale like `_llama3`, with a blend that is linear in the index of the frequency."""

    def index_of(num_rotations: float) -> float:
        wavelength = rope.original_max_positions / (num_rotations * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = index_of(rope.beta_fast), index_of(rope.beta_slow)
    if rope.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low if high != low else 0.001
    stretched = ((torch.arange(head_dim // 2).float() - low) / span).clamp(0.0, 1.0)  # [D/2]
    return stretched / (rope.factor * wavelengths) + (1 - stretched) / wavelengths


def _yarn_attention_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim)
    return yarn_mscale(rope.factor, 1.0)


def yarn_mscale(factor: float, mscale: float) -> float:
    """Return the factor of attention scores for a context stretched `factor` times."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope_attention_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1 or rope.original_max_positions <= 1:
        return 1.0
    return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_max_positions))
