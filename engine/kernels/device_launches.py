"""Launches of the Triton kernels beside attention and sampler at shapes of public models, on torch's `meta` device.

`compile.py` compiles them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from engine.kernels.interface import (
    FLOAT8,
    Activation,
    ExpertMatrices,
    LowRankShape,
    LowRankTokens,
    NormConstants,
)

CHANNELS = (2048, 4096, 5120, 8192, 16_384)
ACTIVATIONS = {
    **{kind: Activation(kind) for kind in ("silu", "gelu", "gelu_tanh", "relu")},
    "gpt-oss": Activation("silu", limit=7.0, slope=1.702),
}
# Channels, inner channels, experts, selected experts per token.
MIXTURES = {
    "mixtral-8x7b": (4096, 14_336, 8, 2),
    "qwen3-30b-a3b": (2048, 768, 128, 8),
    "gpt-oss-20b": (2880, 2880, 32, 4),
}
# Bits, group size, has offsets, are 8-bit floats.
PACKED_FORMS = {
    "int4 in groups of 128": (4, 128, True, False),
    "int4 in groups of 32": (4, 32, True, False),
    "int8 in groups of 16": (8, 16, False, False),
    "int8 of rows": (8, 14_336, False, False),
    "fp8 in blocks of 128": (8, 128, False, True),
}


def other_launches() -> dict[str, Callable[[], object]]:
    """Return the launches by name."""
    return fused_launches() | expert_launches() | low_rank_launches() | packed_launches()


def fused_launches() -> dict[str, Callable[[], object]]:
    """Return the launches of the operators between matrix products."""
    found: dict[str, Callable[[], object]] = {}
    for width in CHANNELS:
        for dtype in (torch.bfloat16, FLOAT8):
            name = f"{width} channels, {'float8' if dtype == FLOAT8 else 'bfloat16'}"
            found[f"add and norm, {name}"] = _add_norm(width, dtype, has_before=False)
            found[f"norm, add and norm, {name}"] = _add_norm(width, dtype, has_before=True)
            found[f"embedding and norm, {name}"] = _embed_norm(width, dtype)
    for name, activation in ACTIVATIONS.items():
        for is_float8 in (False, True):
            kind = f"{name}, {'float8' if is_float8 else 'bfloat16'}"
            found[f"activation, {kind}"] = _activation(activation, is_float8=is_float8)
    return found


def _add_norm(width: int, dtype: torch.dtype, *, has_before: bool) -> Callable[[], object]:
    def launch() -> object:
        from engine.kernels.triton_fused import add_norm

        with torch.device("meta"):
            stream, x = torch.empty(512, width), torch.empty(512, width, dtype=torch.bfloat16)
            norm = NormConstants("rms", dtype, torch.empty(width, dtype=torch.bfloat16))
        return add_norm(stream, x, 1.0, norm, replace(norm, dtype=torch.float32) if has_before else None)

    return launch


def _embed_norm(width: int, dtype: torch.dtype) -> Callable[[], object]:
    def launch() -> object:
        from engine.kernels.triton_fused import embed_norm

        with torch.device("meta"):
            token_ids, table = torch.empty(512, dtype=torch.int64), torch.empty(1024, width, dtype=torch.bfloat16)
            norm = NormConstants("rms", dtype, torch.empty(width, dtype=torch.bfloat16))
        return embed_norm(token_ids, table, 1.0, norm)

    return launch


def _activation(activation: Activation, *, is_float8: bool) -> Callable[[], object]:
    def launch() -> object:
        from engine.kernels.triton_fused import activate, round_rows

        x = torch.empty(512, 2 * 14_336, dtype=torch.bfloat16, device="meta")
        return round_rows(x, activation) if is_float8 else activate(x, activation)

    return launch


def expert_launches() -> dict[str, Callable[[], object]]:
    """Return the launches of a mixture's experts."""
    return {f"experts, {name}": _experts(*sizes) for name, sizes in MIXTURES.items()}


def _experts(width: int, inner: int, num_experts: int, num_chosen: int) -> Callable[[], object]:
    def launch() -> object:
        from engine.kernels.device_experts import mix

        with torch.device("meta"):
            x, weights = torch.empty(512, width, dtype=torch.bfloat16), torch.empty(512, num_chosen)
            up, down = (
                torch.empty(num_experts, *shape, dtype=torch.bfloat16) for shape in ((2 * inner, width), (width, inner))
            )
            experts = torch.empty(512, num_chosen, dtype=torch.int64)
        matrices = ExpertMatrices(up, down, None, None, Activation(), num_experts)
        return mix(matrices, lambda gate_up: gate_up[:, :inner].contiguous(), x, weights, experts)

    return launch


def low_rank_launches() -> dict[str, Callable[[], object]]:
    """Return the launches of LoRA adapters on fused queries, keys and values, which have the most hidden numbers."""
    return {f"adapters of rank {rank}": _low_rank(rank) for rank in (8, 16, 32, 64)}


def _low_rank(rank: int) -> Callable[[], object]:
    def launch() -> object:
        from engine.kernels.device_low_rank import column_blocks
        from engine.kernels.triton_low_rank import add_low_rank

        shape = LowRankShape(4096, rank, ((0, 4096), (4096, 5120), (5120, 6144)))
        with torch.device("meta"):
            x, y = (torch.empty(512, width, dtype=torch.bfloat16) for width in (4096, 6144))
            tokens = LowRankTokens(x, torch.empty(512, dtype=torch.int32), torch.empty(96, 3, dtype=torch.int32))
            addresses = torch.empty(64, dtype=torch.int64)
            blocks = torch.empty(column_blocks(shape).shape, dtype=torch.int32)
        add_low_rank(shape, torch.bfloat16, addresses, blocks, tokens, x, y)
        return None

    return launch


def packed_launches() -> dict[str, Callable[[], object]]:
    """Return the launches of products with packed levels for few and for some tokens, and of their expansion."""
    found: dict[str, Callable[[], object]] = {}
    for name, (bits, group_size, has_offsets, is_float) in PACKED_FORMS.items():
        for num_tokens in (8, 64, 0):
            kind = f"{num_tokens} tokens" if num_tokens else "expansion"
            found[f"packed, {name}, {kind}"] = _packed(
                bits, group_size, num_tokens, has_offsets=has_offsets, is_float=is_float
            )
    return found


def _packed(bits: int, group_size: int, num_tokens: int, *, has_offsets: bool, is_float: bool) -> Callable[[], object]:
    def launch() -> object:
        from engine.kernels.device_packed import DeviceMatrix
        from engine.kernels.triton_packed import expand, multiply

        num_out, num_in = 4096, 14_336
        with torch.device("meta"):
            levels = torch.empty(num_out, num_in * bits // 8, dtype=torch.uint8)
            scales = torch.empty(num_out, num_in // group_size, dtype=torch.bfloat16)
            x = torch.empty(num_tokens, num_in, dtype=torch.bfloat16)
        offsets = scales if has_offsets else None
        matrix = DeviceMatrix(bits, (num_out, num_in), group_size, levels, scales, offsets, is_float)
        return multiply(x, matrix, None) if num_tokens else expand(matrix, torch.bfloat16)

    return launch
