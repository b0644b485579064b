"""Attention on a device: errors against the reference in torch, and launches to time at the shapes of an 8B Llama.

On a CPU, shapes are small; the Triton kernels run there with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from engine.arrays import ceil_div
from engine.kernels.block_pool import BlockPool
from engine.kernels.interface import AttentionShape, AttentionWindow, RotaryLookup
from engine.kernels.launch import DevicePlan, HeadUpdate, max_chunk_entries, write_plans
from engine.kernels.paged_attention import PagedAttention

BLOCK_SIZE = 16
LLAMA_8B = AttentionShape(32, 8, 128)
SHAPES = {
    "llama 8B": LLAMA_8B,
    "window": AttentionShape(32, 8, 128, windows=(AttentionWindow(size=100),)),
    "chunk": AttentionShape(40, 8, 128, windows=(AttentionWindow(chunk=96),)),
    "gemma2": AttentionShape(16, 8, 256, softcap=50.0),
    "gpt-oss, sinks": AttentionShape(64, 8, 64, windows=(AttentionWindow(size=128),)),
    "latent": AttentionShape(16, 1, 576, value_dim=512, scale=0.1),
    "odd heads": AttentionShape(14, 2, 96),
}
SMALL_SHAPES = {
    "plain": AttentionShape(4, 2, 8),
    "window": AttentionShape(4, 2, 8, windows=(AttentionWindow(size=20),)),
    "gpt-oss, sinks": AttentionShape(4, 2, 8, softcap=5.0),
    "latent": AttentionShape(5, 1, 12, value_dim=8),
}
# (tokens, context) of each row; the first rows decode. No token of a context of 0 exists.
ROWS = ((1, 1), (1, 130), (1, 517), (1, 2500), (1, 16384), (300, 300), (40, 40), (17, 217), (3, 3))
SMALL_ROWS = ((1, 1), (1, 70), (1, 300), (9, 9), (5, 40))
NUM_PADDED = 5  # tokens, and surplus entries of each plan
NUM_POSITIONS = 32_768
VARIANTS = ((64, 4, 3), (32, 4, 2), (32, 4, 3), (128, 8, 2))  # keys per tile, warps, stages


@dataclass(frozen=True, eq=False)
class Setup:
    """A step on the device, with a pool that has NaN wherever no key or value is."""

    pool: BlockPool
    plan: DevicePlan
    update: HeadUpdate
    qkv: torch.Tensor


def check(device: torch.device) -> dict[str, float]:
    """Return ‖kernel − reference‖ / ‖reference‖ in bfloat16 (float32 on a CPU) of outputs and pool by case, infinite
    where a number is not finite or a result differs that must be bit-equal."""
    is_cuda = device.type == "cuda"
    shapes, rows = (SHAPES, ROWS) if is_cuda else (SMALL_SHAPES, SMALL_ROWS)
    dtype = torch.bfloat16 if is_cuda else torch.float32
    errors: dict[str, float] = {}
    for name, shape in shapes.items():
        errors |= {f"{name}, {part}": error for part, error in _errors(name, shape, rows, dtype, device).items()}
    first = next(iter(shapes.values()))
    setup = _setup(first, rows, dtype, device)
    errors["decode row alone = in the batch"] = _batch_difference(first, setup)
    if is_cuda:
        errors["replayed graph = eager"] = _replay_difference(first, setup)
    return errors


def cases(device: torch.device) -> Iterator[tuple[str, Callable[[], object], int, int]]:
    """Yield name, launch, bytes moved and floating point operations."""
    is_cuda = device.type == "cuda"
    shape, dtype = (LLAMA_8B, torch.bfloat16) if is_cuda else (SMALL_SHAPES["plain"], torch.float32)
    decode_steps = ((200, 400), (64, 2048), (8, 4096), (1, 16384)) if is_cuda else ((2, 40), (1, 200))
    for number, (num_rows, context) in enumerate(decode_steps):
        setup = _setup(shape, [(1, context)] * num_rows, dtype, device, num_layers=4, num_padded=0)
        name = f"decode, {num_rows} × {context}"
        yield f"{name}", *_launch(shape, setup, "decode")
        if is_cuda and number in (0, len(decode_steps) - 1):
            for tile in VARIANTS:
                yield f"{name}, tile {tile}", *_with_tile(tile, *_launch(shape, setup, "decode"))
        if number == 0:
            split = partial(_attention(shape, setup).begin, setup.plan)
            yield f"split, {num_rows} rows", split, num_rows * 64, 0
    chunk_rows = [(120, 120), (100, 900)] if is_cuda else [(5, 5), (3, 20)]
    chunk_setup = _setup(shape, chunk_rows, dtype, device, num_layers=4, num_padded=0)
    yield f"chunks, {len(chunk_setup.qkv)} tokens", *_launch(shape, chunk_setup, "chunks")
    mixed = _setup(shape, [(1, 400)] * 200 + chunk_rows if is_cuda else SMALL_ROWS, dtype, device, num_layers=4)
    yield f"norms, rotation and KV write, {len(mixed.qkv)} tokens", *_launch(shape, mixed, "store")
    yield f"whole layer, {len(mixed.qkv)} tokens", *_launch(shape, mixed, "layer")


def _setup(
    shape: AttentionShape,
    rows: Any,
    dtype: torch.dtype,
    device: torch.device,
    *,
    num_layers: int = 1,
    num_padded: int = NUM_PADDED,
) -> Setup:
    generator, rng = torch.Generator().manual_seed(7), np.random.default_rng(7)
    counts, lens = (np.array(column, np.int32) for column in zip(*rows, strict=True))
    starts = np.cumsum([0, *counts]).astype(np.int32)
    num_blocks = ceil_div(lens, BLOCK_SIZE)
    order = rng.permutation(num_blocks.sum() + 3)
    tables = np.zeros((len(rows), num_blocks.max()), np.int32)
    is_used = np.zeros(len(order) * BLOCK_SIZE, np.bool_)
    slots = rng.permutation(len(rows)).astype(np.int32)
    mapping = []
    for slot, count, length, end in zip(slots, counts, lens, np.cumsum(num_blocks), strict=True):
        positions = np.arange(length)
        used = ceil_div(int(length), BLOCK_SIZE)
        tables[slot, :used] = order[end - used : end]
        own = tables[slot, positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
        is_used[own] = True
        mapping.append(own[length - count :])
    pool = BlockPool.allocate(shape, num_layers, len(order), BLOCK_SIZE, dtype, device)
    pool.data.normal_()
    is_free = torch.from_numpy(~is_used).view(-1, 1, 1, 1, BLOCK_SIZE, 1).to(device)
    pool.data.masked_fill_(is_free, float("nan"))
    num_decode = int((np.cumsum(counts > 1) == 0).sum())
    size, num_chunk_tokens = PagedAttention(pool, shape, backend="torch").chunk_tokens, int(counts[num_decode:].sum())
    num_chunks = max_chunk_entries(num_chunk_tokens, len(rows) - num_decode, size) if num_chunk_tokens else 0
    chunks = np.ones((num_chunks + num_padded * (num_chunks > 0), 4), np.int32)
    decode = np.ones((num_decode + num_padded * (num_decode > 0), 3), np.int32)
    write_plans(chunks, decode, slots, starts, lens, num_decode, size)
    mapping.append(np.full(num_padded, -1))
    slot_mapping = torch.from_numpy(np.concatenate(mapping))
    plan = DevicePlan(*(torch.from_numpy(each).to(device) for each in (chunks, decode, tables, slot_mapping.numpy())))
    qkv = torch.randn(len(slot_mapping), shape.query_width + shape.kv_width, generator=generator).to(dtype)
    return Setup(pool, plan, _update(shape, len(qkv), dtype, device, generator), qkv.to(device))


def _update(
    shape: AttentionShape, num_tokens: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> HeadUpdate:
    if shape.value_dim is not None:
        return HeadUpdate()
    angles = torch.rand(NUM_POSITIONS, shape.head_dim // 2, generator=generator) * 6.3
    table = torch.stack((angles.cos(), -angles.sin(), angles.sin()), 1).unsqueeze(1).to(dtype)
    positions = torch.randint(0, NUM_POSITIONS, (num_tokens,), generator=generator)
    weight = torch.rand(shape.num_heads + shape.num_kv_heads, shape.head_dim, generator=generator) + 0.5
    return HeadUpdate(weight.to(device), 1e-5, RotaryLookup(table.to(device), positions.to(device)))


def _attention(shape: AttentionShape, setup: Setup, sinks: Any = (), backend: str | None = None) -> PagedAttention:
    """Return attention by the kernels: by Triton's on a GPU and in the interpreter, by torch otherwise."""
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return PagedAttention(setup.pool, shape, sinks, backend or ("triton" if is_interpreted else "auto"))


def _attend(shape: AttentionShape, setup: Setup, sinks: Any = (), backend: str | None = None) -> torch.Tensor:
    attention = _attention(shape, setup, sinks, backend)
    attention.begin(setup.plan)
    return attention.attend_updated(0, setup.qkv.clone(), setup.update)


def _errors(name: str, shape: AttentionShape, rows: Any, dtype: torch.dtype, device: torch.device) -> dict[str, float]:
    setup = _setup(shape, rows, dtype, device)
    other = replace(setup, pool=BlockPool(setup.pool.data.clone(), BLOCK_SIZE))
    sinks = [torch.linspace(-1, 1, shape.num_heads, device=device)] if "sinks" in name else []
    found, expected = _attend(shape, setup, sinks), _attend(shape, other, sinks, "torch")
    pools = [each.pool.data.nan_to_num(-7.0) for each in (setup, other)]
    return {"output": _error(found, expected), "pool": _error(*pools)}


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    error = float((found.float() - expected.float()).norm() / expected.float().norm())
    return error if np.isfinite(error) else float("inf")


def _batch_difference(shape: AttentionShape, setup: Setup) -> float:
    """Compare each decode row of a batch with the row alone."""
    together, plan = _attend(shape, setup), setup.plan
    is_equal = True
    for entry in range(len(plan.decode_plan)):
        _slot, token, context = plan.decode_plan[entry].tolist()
        if context:
            alone = replace(plan, chunk_plan=plan.chunk_plan[:0], decode_plan=plan.decode_plan[entry : entry + 1])
            found = _attend(shape, replace(setup, plan=alone))
            is_equal &= torch.equal(found[token], together[token])
    return 0.0 if is_equal else float("inf")


def _replay_difference(shape: AttentionShape, setup: Setup) -> float:
    """Replay a graph that was captured for an empty step with the plan of a full step."""
    eager, plan = _attend(shape, setup), setup.plan
    static = replace(setup, plan=replace(plan, chunk_plan=plan.chunk_plan * 0, decode_plan=plan.decode_plan * 0))
    _attend(shape, static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = _attend(shape, static)
    static.plan.chunk_plan.copy_(plan.chunk_plan)
    static.plan.decode_plan.copy_(plan.decode_plan)
    graph.replay()
    torch.cuda.synchronize()
    return 0.0 if torch.equal(replayed, eager) else float("inf")


def _launch(shape: AttentionShape, setup: Setup, part: str) -> tuple[Callable[[], object], int, int]:
    """Return a launch that reads another layer each time, with its bytes and operations."""
    attention, plan = _attention(shape, setup), setup.plan
    attention.begin(plan)
    layers, numbers = attention._layers, itertools.cycle(range(len(attention._layers)))
    backend, out = attention._backend, torch.zeros_like(setup.qkv)[:, : shape.output_width]
    decode, chunks = plan.decode_plan.tolist(), plan.chunk_plan.tolist()
    item, io = setup.qkv.element_size(), 2 * setup.qkv.element_size() * shape.query_width
    keys, scores = 0, 0
    if part in ("decode", "layer"):
        keys += sum(context for _, _, context in decode)
        scores += keys
    if part in ("chunks", "layer"):
        last_positions: dict[int, int] = {}
        for slot, _, count, position in chunks:
            last_positions[slot] = max(last_positions.get(slot, 0), position + count)
            scores += sum(range(position + 1, position + count + 1))
        keys += sum(last_positions.values())
    num_bytes = keys * shape.kv_width * item + len(setup.qkv) * io
    if part in ("store", "layer"):
        num_bytes += 2 * setup.qkv.numel() * item
    operations = 4 * scores * shape.num_heads * shape.head_dim
    parts: Any = getattr(attention, "_parts", [None])[0]
    partial_sums: Any = getattr(attention, "_partial", None)
    launches: dict[str, Callable[[], object]] = {
        "decode": lambda: backend.decode(setup.qkv, out, plan, parts, partial_sums, layers[next(numbers)]),
        "chunks": lambda: backend.chunks(setup.qkv, out, plan, layers[next(numbers)]),
        "store": lambda: backend.store(setup.qkv, plan.slot_mapping, setup.update, layers[next(numbers)]),
        "layer": lambda: attention.attend_updated(next(numbers), setup.qkv, setup.update),
    }
    return launches[part], num_bytes if part != "store" else 2 * setup.qkv.numel() * item, operations


def _with_tile(
    tile: tuple[int, int, int], launch: Callable[[], object], num_bytes: int, operations: int
) -> tuple[Callable[[], object], int, int]:
    """Return the launch with other keys per tile, warps and stages."""
    from engine.kernels import triton_attention

    sizes = dict(zip(("num_n", "num_warps", "num_stages"), tile, strict=True))

    def changed() -> None:
        usual = triton_attention.tile_of
        triton_attention.tile_of = lambda *_, **__: sizes
        try:
            launch()
        finally:
            triton_attention.tile_of = usual

    return changed, num_bytes, operations
