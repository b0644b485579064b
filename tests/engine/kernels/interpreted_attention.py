"""Compare the Triton kernels of attention with their references: run with TRITON_INTERPRET=1.

Takes names of shapes and prints the largest difference of each as JSON. Runs in a process of its own, because Triton
reads the variable when it is imported.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch

from engine.kernels import torch_attention, triton_attention
from engine.kernels.float8_kv import from_stored, to_stored
from engine.kernels.interface import FLOAT8, AttentionShape, AttentionWindow, RotaryLookup
from engine.kernels.launch import DevicePlan, HeadUpdate, SplitRule, chunk_tokens, write_plans
from engine.kernels.paged_attention import PagedAttention
from tests.engine.kernels.test_cpu import (
    BLOCK,
    NUM_BLOCKS,
    NUM_LAYERS,
    SHAPES,
    Life,
    block_pool_of,
    float8_scales,
    sinks_of,
)

BACKENDS = ("torch", "triton")
NUM_STEPS = 3
FLOAT8_SHAPES = ("grouped", "value within key", "capped, with sinks")
ROWS = ((1, 1), (1, 64), (1, 65), (1, 150), (1, 0), (3, 3), (30, 40), (17, 33))  # tokens and context; (1, 0) is empty
PADDING = 3  # tokens, rows of both plans


def differences(name: str) -> dict[str, float]:
    shape, sinks = SHAPES[name], sinks_of(name)
    life = Life(5)
    steps = [life.step() for _ in range(NUM_STEPS)]
    float8 = {}
    if name in FLOAT8_SHAPES:
        plan = padded_plan(shape, FLOAT8)
        float8["8-bit floats"] = largest([plan], shape, sinks, SplitRule(64, 2), is_full=True, is_float8=True)
    return float8 | {
        "steps": largest([(step, len(step.slot_mapping)) for step in steps], shape, sinks),
        "one part": largest([padded_plan(shape)], shape, sinks, SplitRule(256, 4), is_full=True),
        "many parts": largest([padded_plan(shape)], shape, sinks, SplitRule(64, 2), is_full=True),
        "heads": largest([padded_plan(shape)], shape, sinks, is_full=True, has_update=shape.value_dim is None),
        "splits": max(split_difference(shape.windows[0], rule) for rule in (SplitRule(64, 2), SplitRule(128, 16))),
    }


def largest(
    steps: list[Any],
    shape: AttentionShape,
    sinks: list[torch.Tensor],
    rule: SplitRule | None = None,
    *,
    is_full: bool = False,
    has_update: bool = False,
    is_float8: bool = False,
) -> float:
    """Return the largest difference over steps of outputs and pools. Pools are full or have NaN where none was
    written."""
    generator = torch.Generator().manual_seed(0)
    form = (FLOAT8, float8_scales(shape)) if is_float8 else (torch.float32, None)
    pools, found = [block_pool_of(shape, *form) for _ in range(2)], 0.0
    if is_full:
        numbers = torch.randn(pools[0].data.shape, generator=generator)
        for pool in pools:
            pool.data.copy_(numbers)
    twins = [PagedAttention(pool, shape, sinks, backend) for pool, backend in zip(pools, BACKENDS, strict=True)]
    for twin in twins:
        twin._rule = rule or twin._rule
    for step, num_tokens in steps:
        update = random_update(shape, num_tokens, generator) if has_update else HeadUpdate()
        for layer in range(NUM_LAYERS):
            qkv = torch.randn(num_tokens, shape.query_width + shape.kv_width, generator=generator)
            if is_float8:  # exact ones, because the interpreter rounds numbers just below a power of two to half of it
                kv = qkv[:, shape.query_width :].unflatten(1, (shape.num_planes, shape.num_kv_heads, -1))
                kv.copy_(from_stored(to_stored(kv, pools[0].scales_of(layer)), pools[0].scales_of(layer)))
            results = []
            for twin in twins:
                twin.begin(step)
                results.append(twin.attend_updated(layer, qkv.clone(), update))
            found = max(found, difference(*results))
        found = max(found, difference(*(pool.data.float().nan_to_num(-7.0) for pool in pools)))
    return found


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).abs().max().nan_to_num(nan=float("inf")))


def random_update(shape: AttentionShape, num_tokens: int, generator: torch.Generator) -> HeadUpdate:
    weight = torch.randn(shape.num_heads + shape.num_kv_heads, shape.head_dim, generator=generator)
    table = torch.randn(300, 1, 3, shape.head_dim // 2, generator=generator)
    table[:, :, 1] = -table[:, :, 2]
    positions = torch.randint(0, 300, (num_tokens,), generator=generator)
    return HeadUpdate(weight, 1e-3, RotaryLookup(table, positions))


def padded_plan(shape: AttentionShape, dtype: torch.dtype = torch.float32) -> tuple[DevicePlan, int]:
    """Return a plan with surplus entries and padded tokens, whose rows have slots in reverse order."""
    counts, lens = (np.array(column, np.int32) for column in zip(*ROWS, strict=True))
    starts = np.cumsum([0, *counts]).astype(np.int32)
    slots = np.arange(len(ROWS), dtype=np.int32)[::-1]
    num_decode = int(np.argmax(counts > 1))
    chunks, decode = np.ones((200, 4), np.int32), np.ones((num_decode + PADDING, 3), np.int32)
    write_plans(chunks, decode, slots, starts, lens, num_decode, chunk_tokens(shape, dtype))
    tables = np.zeros((len(ROWS), 64), np.int32)
    free = np.random.default_rng(2).permutation(NUM_BLOCKS).tolist()
    mapping = []
    for slot, count, length in zip(slots, counts, lens, strict=True):
        blocks = [free.pop() for _ in range(-(-length // BLOCK))]
        tables[slot, : len(blocks)] = blocks
        positions = range(length - count, length) if length else [-1]
        mapping += [blocks[at // BLOCK] * BLOCK + at % BLOCK if at >= 0 else -1 for at in positions]
    mapping += [-1] * PADDING
    arrays = [torch.from_numpy(each) for each in (chunks, decode, tables)]
    return DevicePlan(*arrays, torch.tensor(mapping)), len(mapping)


def split_difference(window: AttentionWindow, rule: SplitRule) -> float:
    lens = np.array([0, 1, 63, 64, 65, 0, 128, 129, 1000, 5000, 0, 0], np.int32)
    plan = torch.from_numpy(np.stack([np.arange(12), np.arange(12)[::-1], lens], 1).astype(np.int32))
    expected, found = (each.split(plan, window, rule) for each in (torch_attention, triton_attention))
    used = int(expected.starts[-1])
    return max(difference(expected.starts, found.starts), difference(expected.items[:used, :7], found.items[:used, :7]))


if __name__ == "__main__":
    json.dump({name: differences(name) for name in sys.argv[1:]}, sys.stdout)
