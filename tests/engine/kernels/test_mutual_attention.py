"""Tokens of an image see each other with every kind of kernels, and other tokens see what they saw before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine.kernels.block_pool import BlockPool
from engine.kernels.cpu_attention import CpuAttention
from engine.kernels.interface import AttentionShape, AttentionWindow, KvPool
from engine.kernels.mutual_attention import with_mutual_attention
from engine.kernels.native.chosen import find_native_kernels
from engine.kernels.paged_attention import PagedAttention
from engine.kernels.reference import ReferenceAttention

SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=16, windows=(AttentionWindow(size=20), AttentionWindow()))
SPANS = np.array([[3, 9], [14, 24]], np.int32)  # the first row decodes; the second is new; the third has 5 tokens
STARTS, LENS = np.array([0, 1, 12, 26], np.int32), np.array([7, 11, 19], np.int32)
TABLES = np.arange(15, dtype=np.int32).reshape(3, 5)


def step() -> Any:
    positions = np.concatenate([np.arange(n - t, n) for n, t in zip(LENS, np.diff(STARTS), strict=True)])
    rows = np.repeat(np.arange(3), np.diff(STARTS))
    slots = torch.from_numpy(TABLES[rows, positions // 4].astype(np.int64) * 4 + positions % 4)
    return SimpleNamespace(
        slot_mapping=slots, query_starts=STARTS, context_lens=LENS, block_tables=TABLES, num_decode_rows=1
    )


def native(pool: KvPool, shape: AttentionShape) -> Any:
    kernels = find_native_kernels()
    if kernels is None:
        pytest.skip("no compiled kernels here")
    return kernels.attention(pool, shape)


def paged(pool: KvPool, shape: AttentionShape) -> Any:
    """Return the attention of a device, over a pool with the same content."""
    blocks = BlockPool.allocate(shape, 2, 15, 4, torch.float32, torch.device("cpu"))
    blocks.blocks.copy_(pool.data.view(2, 15, 4, 2, 2, 16).permute(1, 0, 3, 4, 2, 5))
    return PagedAttention(blocks, shape)


def expected(pool: torch.Tensor, qkv: torch.Tensor, window: int | None) -> torch.Tensor:
    """Return the attention of every token from a dense mask."""
    slots = step().slot_mapping
    out = torch.empty(26, 64)
    pool[slots] = qkv[:, 64:]
    for row, (first, last) in enumerate(zip(STARTS[:-1].tolist(), STARTS[1:].tolist(), strict=True)):
        for token in range(first, last):
            end = int(LENS[row]) - last + token + 1
            for start, stop in SPANS.tolist():
                end = int(LENS[row]) - last + stop if start <= token < stop else end
            seen = np.arange(0 if window is None else max(0, end - window), end)
            kv = pool[TABLES[row, seen // 4] * 4 + seen % 4].view(-1, 2, 2, 16)
            keys, values = kv[:, 0].repeat_interleave(2, 1), kv[:, 1].repeat_interleave(2, 1)
            weights = (torch.einsum("hd,chd->hc", qkv[token, :64].view(4, 16), keys) / 4).softmax(-1)
            out[token] = torch.einsum("hc,chd->hd", weights, values).flatten()
    return out


@pytest.mark.parametrize("kind", [ReferenceAttention, CpuAttention, paged, native])
def test_tokens_of_an_image_see_the_whole_image(kind: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    pool = KvPool(torch.randn(2, 60, 64, generator=generator), 4)
    attention = kind(pool, SHAPE)
    attention.begin(with_mutual_attention(step(), SPANS))
    for layer, window in enumerate((20, None)):
        qkv = torch.randn(26, 128, generator=generator)
        before = pool.data[layer].clone()
        torch.testing.assert_close(
            attention.attend(layer, qkv.clone()), expected(before, qkv, window), atol=1e-5, rtol=1e-5
        )
