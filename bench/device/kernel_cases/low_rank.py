"""LoRA adapters: shrink and expand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from bench.device.kernel_cases.comparison import Case, batch_error, bit_error, largest_error, product_types
from engine.kernels.device_low_rank import DeviceLowRank, column_blocks, tile_tokens
from engine.kernels.interface import AddLowRank, LowRankShape, LowRankTokens

# Linear maps of Llama-3.1-8B: queries, keys and values; output; gate and up; down.
MAPS = {
    "qkv": (4096, ((0, 4096), (4096, 5120), (5120, 6144))),
    "out": (4096, ((0, 4096),)),
    "gate and up": (4096, ((0, 14_336), (14_336, 28_672))),
    "down": (14_336, ((0, 4096),)),
}
_SMALL_MAPS = {"two parts": (40, ((0, 24), (30, 34))), "one part": (72, ((0, 160),))}


def check(device: torch.device) -> dict[str, float]:
    """Return the largest relative error of each case."""
    torch.manual_seed(0)
    maps = {kind: MAPS[kind] for kind in ("qkv", "down")} if device.type == "cuda" else _SMALL_MAPS
    errors: dict[str, float] = {}
    for name, dtype in product_types(device).items():
        for kind, (num_in, parts) in maps.items():
            for rank in (8, 64):
                kernel = DeviceLowRank(LowRankShape(num_in, rank, parts), dtype)
                memory = _memory(kernel, 3)
                # 19 tokens of one adapter, 2 of another, 12 without one.
                slots, rows = np.array([1] * 19 + [0] * 2, np.int32), np.random.default_rng(0).permutation(33)[:21]
                x, y = torch.randn(33, num_in).to(dtype), torch.randn(33, parts[-1][1] + 6).to(dtype)
                expected = y.clone()
                kernel.bind(memory, LowRankTokens(torch.from_numpy(slots), torch.from_numpy(rows)))(x, expected)
                found = y.clone().to(device)
                _bound(kernel, memory.to(device), slots, rows, len(x))(x.to(device), found)
                case = f"low rank {name}, {kind}, rank {rank}"
                errors[case] = largest_error(found.cpu(), expected)
                others = np.setdiff1d(np.arange(33), rows)
                errors[f"{case}, other tokens"] = bit_error(found.cpu()[others], y[others])
                alone, last = y.clone().to(device), slice(len(rows) - 1, None)
                _bound(kernel, memory.to(device), slots[last], rows[last], len(x))(x.to(device), alone)
                errors[f"{case}, one alone"] = batch_error(alone[rows[last]], found[rows[last]])
    return errors


def cases(device: torch.device) -> Iterator[Case]:
    """Yield the adapters of one linear map for 420 tokens with 8 adapters of rank 16, for timing."""
    num_tokens, num_adapters, rank, dtype = 420, 8, 16, torch.bfloat16
    slots = np.sort(np.arange(num_tokens, dtype=np.int32) % num_adapters)
    for kind, (num_in, parts) in MAPS.items():
        kernel = DeviceLowRank(LowRankShape(num_in, rank, parts), dtype)
        memory = _memory(kernel, num_adapters).to(device)
        x = torch.randn(num_tokens, num_in, device=device).to(dtype)
        y = torch.zeros(num_tokens, parts[-1][1], device=device, dtype=dtype)
        add = _bound(kernel, memory, slots, np.arange(num_tokens), num_tokens)
        num_numbers = kernel.size * num_adapters + x.numel() + 2 * y.numel()
        yield (
            f"adapters of rank {rank}, {kind}, {num_tokens} tokens",
            partial(add, x, y),
            num_numbers * 2,
            2 * num_tokens * kernel.size,
        )


def _memory(kernel: DeviceLowRank, num_slots: int) -> torch.Tensor:
    """Return random adapters [S, size]; each slot begins at a multiple of 16 bytes."""
    scale = kernel.shape.num_in**-0.5
    return (torch.randn(num_slots, -(-kernel.size // 8) * 8) * scale).to(kernel.dtype)


def _bound(
    kernel: DeviceLowRank, memory: torch.Tensor, slots: np.ndarray, rows: np.ndarray, num_tokens: int
) -> AddLowRank:
    from engine.kernels.triton_low_rank import add_low_rank

    device = memory.device
    row_bytes = memory.stride(0) * memory.element_size()
    addresses = torch.tensor([memory.data_ptr() + slot * row_bytes for slot in range(len(memory))], device=device)
    padded, tiles = (torch.from_numpy(each).to(device) for each in tile_tokens(slots, rows, num_tokens, num_tokens))
    tokens = LowRankTokens(torch.from_numpy(slots), padded, tiles)
    blocks = torch.from_numpy(column_blocks(kernel.shape)).to(device)

    # `memory` is named here because the kernel reads it by address only.
    def add(x: torch.Tensor, y: torch.Tensor, _memory: torch.Tensor = memory) -> None:
        add_low_rank(kernel.shape, kernel.dtype, addresses, blocks, tokens, x, y)

    return add
