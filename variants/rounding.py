"""Quantize weights [out, in] to integer levels or 8-bit floats, and scales. Deterministic; uses only the weights."""

from __future__ import annotations

import torch

FLOAT8 = torch.float8_e4m3fn
_MOST_FLOAT8 = torch.finfo(FLOAT8).max  # 448
_LEAST, _MOST = -8, 7  # the 4-bit levels
# Candidate scales relative to the scale of the largest weight. Smaller ones clip it; other weights get finer levels.
_SHARES = tuple(1 - 0.03 * step for step in range(12))


def round_by_output(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [out, in] -> int8 levels within ± 127, and float32 scales [out, 1]."""
    peak = weight.abs().amax(1, keepdim=True)  # [out, 1]
    scales = torch.where(peak > 0, peak, 1.0) / 127
    return torch.round(weight / scales).clamp_(-127, 127).to(torch.int8), scales


def round_to_float8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [out, in] -> 8-bit floats (e4m3), and float32 scales [out, 1] that map the largest weight to 448."""
    peak = weight.abs().amax(1, keepdim=True)  # [out, 1]
    scales = torch.where(peak > 0, peak, 1.0) / _MOST_FLOAT8
    return (weight / scales).clamp_(-_MOST_FLOAT8, _MOST_FLOAT8).to(FLOAT8), scales


def round_by_group(weight: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [out, in] -> uint8 levels 0 to 15 [out, in] around 8, and bfloat16 scales [out, groups].

    A group's scale has the sign that maps its largest weight to -8, the level without a positive counterpart. Several
    clippings of that weight are tried; the smallest squared error wins.
    """
    grouped = weight.reshape(len(weight), -1, group_size)  # [out, groups, size]
    largest = grouped.abs().argmax(-1, keepdim=True)
    full = grouped.gather(-1, largest) / _LEAST  # [out, groups, 1]
    best_error, best_scales = torch.full_like(full, float("inf"), dtype=torch.float64), full.to(torch.bfloat16)
    for share in _SHARES:
        scales = (full * share).to(torch.bfloat16)
        error = (
            (_levels(grouped, scales) * scales.float() - grouped).square_().sum(-1, keepdim=True, dtype=torch.float64)
        )
        is_better = error < best_error
        best_error, best_scales = torch.where(is_better, error, best_error), torch.where(is_better, scales, best_scales)
    levels = (_levels(grouped, best_scales) - _LEAST).to(torch.uint8)
    return levels.flatten(1), best_scales.squeeze(-1)


def _levels(grouped: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    exact = scales.float()
    return torch.round(grouped / torch.where(exact == 0, 1.0, exact)).clamp_(_LEAST, _MOST)
