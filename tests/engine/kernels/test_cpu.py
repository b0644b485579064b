"""engine/kernels/cpu*.py: equal to the reference operators for any order of steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.kernels import cpu_linear
from engine.kernels.block_pool import BlockPool
from engine.kernels.cpu import CpuKernels
from engine.kernels.cpu_attention import CpuAttention
from engine.kernels.interface import FULL_ATTENTION, Activation, AttentionShape, AttentionWindow, KvPool
from engine.kernels.reference import Kernels, ReferenceAttention, attend_one, causal_bias
from tests.engine import one_thread  # noqa: F401

BLOCK = 4
NUM_BLOCKS = 96
NUM_LAYERS = 2
SHAPES = {
    "grouped": AttentionShape(num_heads=6, num_kv_heads=2, head_dim=8),
    "single": AttentionShape(num_heads=3, num_kv_heads=3, head_dim=4),
    "windowed": AttentionShape(num_heads=4, num_kv_heads=2, head_dim=8, windows=(AttentionWindow(size=7),)),
    "window of one": AttentionShape(num_heads=2, num_kv_heads=1, head_dim=4, windows=(AttentionWindow(size=1),)),
    "chunked": AttentionShape(num_heads=4, num_kv_heads=2, head_dim=8, windows=(AttentionWindow(chunk=6),)),
    "window, then all": AttentionShape(
        num_heads=4, num_kv_heads=2, head_dim=8, windows=(AttentionWindow(size=5), FULL_ATTENTION)
    ),
    "chunk, then window": AttentionShape(
        num_heads=4, num_kv_heads=2, head_dim=8, windows=(AttentionWindow(chunk=9), AttentionWindow(size=3))
    ),
    "capped": AttentionShape(num_heads=6, num_kv_heads=2, head_dim=8, softcap=0.7, scale=0.9),
    "value within key": AttentionShape(num_heads=5, num_kv_heads=1, head_dim=12, value_dim=8, scale=0.2),
    "with sinks": AttentionShape(
        num_heads=6, num_kv_heads=2, head_dim=8, windows=(AttentionWindow(size=6), FULL_ATTENTION)
    ),
    "capped, with sinks": AttentionShape(num_heads=2, num_kv_heads=2, head_dim=8, softcap=0.7),
}


def sinks_of(name: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    num_heads = SHAPES[name].num_heads
    return [torch.randn(num_heads, generator=generator) for _ in range(NUM_LAYERS if "sinks" in name else 0)]


@dataclass(frozen=True)
class Step:
    slot_mapping: torch.Tensor
    query_starts: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    num_decode_rows: int


class Life:
    """Sequences of random lengths that start, take part in some steps, end and are replaced, with blocks in random
    order.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.free = self.rng.permutation(NUM_BLOCKS).tolist()
        self.lengths: dict[int, int] = {}
        self.tables: dict[int, list[int]] = {}
        self.next_id = 0

    def step(self) -> Step:
        """Return the next step: most rows decode, some are chunks, some sequences start or end."""
        for sequence_id in list(self.lengths):
            if self.rng.random() < 0.05 or self.lengths[sequence_id] > 60:
                self.free += self.tables.pop(sequence_id)
                del self.lengths[sequence_id]
        while len(self.lengths) < 2 or (len(self.lengths) < 5 and self.rng.random() < 0.3):
            self.lengths[self.next_id], self.tables[self.next_id] = 0, []
            self.next_id += 1
        rows = [sequence_id for sequence_id in self.lengths if self.rng.random() < 0.9] or list(self.lengths)
        chunks = {row: int(self.rng.integers(1, 12)) if self.lengths[row] < 5 else 1 for row in rows}
        if self.rng.random() < 0.1:
            rows = self.rng.permutation(rows).tolist()
        return self.step_of(sorted(rows, key=lambda row: chunks[row] > 1), chunks)

    def draft_step(self) -> Step:
        """Return a step of rows with their next token and draft tokens. `forget_drafts` rejects some of them."""
        rows = [row for row in self.lengths if self.lengths[row] > 0 and self.rng.random() < 0.8][:3]
        chunks = {row: int(self.rng.choice([1, 1, 2, 5, 9])) for row in rows}
        step = self.step_of(sorted(rows, key=lambda row: chunks[row] > 1), chunks)
        for row in rows:
            self.lengths[row] -= int(self.rng.integers(0, chunks[row]))  # rejected draft tokens
        return step

    def step_of(self, rows: list[int], chunks: dict[int, int]) -> Step:
        mapping: list[int] = []
        for row in rows:
            first, self.lengths[row] = self.lengths[row], self.lengths[row] + chunks[row]
            table = self.tables[row]
            while len(table) * BLOCK < self.lengths[row]:
                table.append(self.free.pop())
            mapping += [table[at // BLOCK] * BLOCK + at % BLOCK for at in range(first, self.lengths[row])]
        tables = np.zeros((len(rows), 24), np.int32)
        for index, row in enumerate(rows):
            tables[index, : len(self.tables[row])] = self.tables[row]
        counts = [chunks[row] for row in rows]
        return Step(
            slot_mapping=torch.tensor(mapping),
            query_starts=np.cumsum([0, *counts]).astype(np.int32),
            context_lens=np.array([self.lengths[row] for row in rows], np.int32),
            block_tables=tables,
            num_decode_rows=next((i for i, count in enumerate(counts) if count > 1), len(counts)),
        )


def pool_of(shape: AttentionShape, dtype: torch.dtype = torch.float32, scales: torch.Tensor | None = None) -> KvPool:
    """Return a pool filled with NaN, so that a read of unwritten memory shows in the result."""
    pool = KvPool(torch.empty(NUM_LAYERS, NUM_BLOCKS * BLOCK, shape.kv_width, dtype=dtype), BLOCK, scales)
    pool.poison()
    return pool


def block_pool_of(
    shape: AttentionShape, dtype: torch.dtype = torch.float32, scales: torch.Tensor | None = None
) -> BlockPool:
    """Return the same in the layout of devices."""
    pool = BlockPool.allocate(shape, NUM_LAYERS, NUM_BLOCKS, BLOCK, dtype, torch.device("cpu"))
    pool = replace(pool, scales=scales)
    pool.poison()
    return pool


def float8_scales(shape: AttentionShape) -> torch.Tensor:
    """Return powers of two that differ between layers, planes and heads, float32 [L, planes, G]."""
    sizes = NUM_LAYERS, shape.num_planes, shape.num_kv_heads
    return torch.exp2(-torch.arange(float(np.prod(sizes)))).view(sizes)


def assert_twins_agree(name: str, seed: int, dtype: torch.dtype, tolerance: float, draft_fraction: float = 0.0) -> None:
    shape, sinks = SHAPES[name], sinks_of(name)
    life, pools = Life(seed), (pool_of(shape, dtype), pool_of(shape, dtype))
    twins = ReferenceAttention(pools[0], shape, sinks), CpuAttention(pools[1], shape, sinks)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(80):
        step = life.draft_step() if life.rng.random() < draft_fraction else life.step()
        if not len(step.context_lens):
            continue
        for twin in twins:
            twin.begin(step)
        for layer in range(NUM_LAYERS):
            qkv = torch.randn(len(step.slot_mapping), shape.query_width + shape.kv_width, generator=generator).to(dtype)
            expected, found = (twin.attend(layer, qkv.clone()) for twin in twins)
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    assert torch.equal(*(pool.data.nan_to_num(-7.0) for pool in pools))  # equal and complete contents


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_attention_equals_its_reference_for_any_order_of_steps(name: str, seed: int) -> None:
    assert_twins_agree(name, seed, torch.float32, 1e-5)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_rejected_draft_tokens_do_not_change_attention(name: str, seed: int) -> None:
    assert_twins_agree(name, seed, torch.float32, 1e-5, draft_fraction=0.7)


@pytest.mark.parametrize("name", SHAPES)
def test_bfloat16_attention_is_close_to_its_reference(name: str) -> None:
    assert_twins_agree(name, 11, torch.bfloat16, 0.03)


def test_prefill_in_small_tiles_equals_prefill_in_one(monkeypatch) -> None:
    monkeypatch.setattr("engine.kernels.cpu_attention._TILES", (1, 8))
    shape, life = SHAPES["windowed"], Life(0)
    life.lengths, life.tables = {0: 0}, {0: []}
    step = life.step_of([0], {0: 50})
    qkv = torch.randn(50, shape.query_width + shape.kv_width).bfloat16()
    attention, reference = CpuAttention(pool_of(shape, torch.bfloat16), shape), Kernels().attention
    twin = reference(pool_of(shape, torch.bfloat16), shape)
    attention.begin(step)
    twin.begin(step)
    torch.testing.assert_close(attention.attend(0, qkv.clone()), twin.attend(0, qkv), atol=0.03, rtol=0.03)


def test_row_with_nan_does_not_affect_other_rows_of_the_batch() -> None:
    shape = SHAPES["grouped"]
    life, attention = Life(0), CpuAttention(pool_of(shape), shape)
    life.lengths, life.tables = dict.fromkeys(range(4), 0), {row: [] for row in range(4)}
    batches = [[0, 1, 2]] * 3 + [[0, 2]] * 2 + [[0, 3, 2]] * 3  # row 1 has NaN and leaves; row 3 reuses its blocks
    for batch in batches:
        step = life.step_of(batch, dict.fromkeys(batch, 1))
        attention.begin(step)
        for layer in range(NUM_LAYERS):
            qkv = torch.randn(len(batch), shape.query_width + shape.kv_width)
            if 1 in batch:
                qkv[batch.index(1)] = float("nan")
            mixed = attention.attend(layer, qkv)
            is_sick = torch.tensor([row == 1 for row in batch])
            assert torch.equal(~mixed.isfinite().all(1), is_sick)


def test_sliding_window_contains_the_last_positions() -> None:
    assert mean_position_seen(AttentionWindow(size=3)) == 4.0
    assert mean_position_seen(FULL_ATTENTION) == 2.5


def test_chunked_window_contains_earlier_positions_of_the_chunk() -> None:
    assert mean_position_seen(AttentionWindow(chunk=4)) == 4.5  # the mean of positions 4 and 5 of six
    assert mean_position_seen(AttentionWindow(chunk=5)) == 5.0


def mean_position_seen(window: AttentionWindow) -> float:
    """Return the mean of the positions that the last of six tokens attends to."""
    query, keys = torch.zeros(1, 1, 2), torch.zeros(6, 1, 2)  # equal scores for all keys
    values = torch.arange(6.0).view(6, 1, 1).expand(6, 1, 2)
    return float(attend_one(query, keys, values, AttentionShape(1, 1, 2), window)[0, 0])


def test_sink_takes_part_in_the_softmax_without_a_value() -> None:
    query, keys, values = torch.zeros(1, 2, 2), torch.zeros(3, 1, 2), torch.ones(3, 1, 2)
    sinks = torch.tensor([0.0, float("-inf")])  # a quarter of the weights of the first head, none of the second
    mixed = attend_one(query, keys, values, AttentionShape(2, 1, 2), FULL_ATTENTION, sinks)
    torch.testing.assert_close(mixed, torch.tensor([[0.75, 0.75, 1.0, 1.0]]))


@pytest.mark.parametrize("window", [FULL_ATTENTION, AttentionWindow(size=5), AttentionWindow(chunk=5)])
def test_number_of_visible_positions_equals_the_bias(window: AttentionWindow) -> None:
    lengths = np.arange(1, 17, dtype=np.int32)
    counted = [int((causal_bias(1, int(length), window) == 0).sum()) for length in lengths]
    assert window.num_visible(lengths).tolist() == counted


# ── other operators ──


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_rotation_and_gate_equal_their_references(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    twins: tuple[Kernels, Kernels] = (Kernels(), CpuKernels())
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.02, "rtol": 0.02}
    for num_tokens in (1, 5):
        x, weight = torch.randn(num_tokens, 24, generator=generator), torch.randn(24, generator=generator).to(dtype)
        for scale in (1.0, 1e-4):  # inputs small enough for eps to matter
            expected, found = (twin.rms_norm(weight, 1e-5, dtype)(x * scale) for twin in twins)
            assert found.dtype == dtype
            torch.testing.assert_close(found, expected, **tolerance)
        qkv = torch.randn(num_tokens, 5 * 8, generator=generator).to(dtype)
        angles = torch.randn(num_tokens, 1, 1, 4, generator=generator)
        sin = torch.cat((-angles.sin(), angles.sin()), 2).to(dtype)
        rotated = qkv.clone(), qkv.clone()
        for twin, copy in zip(twins, rotated, strict=True):
            twin.rotation(3)(copy, (angles.cos().to(dtype), sin))
        torch.testing.assert_close(rotated[1], rotated[0], **tolerance)
        assert torch.equal(rotated[1][:, 24:], qkv[:, 24:])  # values are not rotated
        heads = qkv.clone(), qkv.clone()
        head_weight = torch.randn(3, 8, generator=generator)
        for twin, copy in zip(twins, heads, strict=True):
            twin.norm_heads(head_weight, 1e-3)(copy)
        torch.testing.assert_close(heads[1], heads[0], **tolerance)
        assert torch.equal(heads[1][:, 24:], qkv[:, 24:])
        assert not torch.equal(heads[1][:, :24], qkv[:, :24])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm_and_linear_per_head_equal_their_references(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.05, "rtol": 0.02}
    for num_tokens in (1, 5):
        x = torch.randn(num_tokens, 24, generator=generator) + 3
        weight, bias = (torch.randn(24, generator=generator).to(dtype) for _ in range(2))
        for some_bias in (None, bias):
            twins = [twin.layer_norm(weight, some_bias, 1e-5, dtype)(x) for twin in (Kernels(), CpuKernels())]
            assert twins[1].dtype == dtype
            torch.testing.assert_close(twins[1], twins[0], **tolerance)
        matrices = torch.randn(4, 6, 10, generator=generator).to(dtype)
        twins = [twin.linear_per_head(matrices)(x.to(dtype)) for twin in (Kernels(), CpuKernels())]
        assert twins[1].shape == (num_tokens, 40)
        torch.testing.assert_close(twins[1], twins[0], **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_equal_their_references(dtype: torch.dtype) -> None:
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.02, "rtol": 0.02}
    x = torch.randn(5, 24, generator=torch.Generator().manual_seed(0)).to(dtype) * 3
    seen = []
    for kind in ("silu", "gelu", "gelu_tanh", "relu"):
        for activation in (Activation(kind), Activation(kind, is_gated=False)):
            expected, found = (twin.activation(activation)(x.clone()) for twin in (Kernels(), CpuKernels()))
            torch.testing.assert_close(found, expected, **tolerance)
            assert found.shape == (5, 12 if activation.is_gated else 24)
            seen.append(found)
    limited = Activation("silu", limit=0.8, slope=1.7)
    expected, found = (twin.activation(limited)(x.clone()) for twin in (Kernels(), CpuKernels()))
    torch.testing.assert_close(found, expected, **tolerance)
    assert not torch.equal(found, seen[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_packable", [False, True])
def test_linear_operators_give_equal_results(
    dtype: torch.dtype, has_bias: bool, is_packable: bool, monkeypatch
) -> None:
    if not is_packable:
        monkeypatch.setattr(cpu_linear, "has_prepacked_linear", lambda dtype: False)
    generator = torch.Generator().manual_seed(0)
    for num_out, num_in in ((40, 24), (400, 300)):  # below and above the size that is prepacked in float32
        weight = torch.randn(num_out, num_in, generator=generator).to(dtype)
        bias = torch.randn(num_out, generator=generator).to(dtype) if has_bias else None
        for num_tokens in (1, 7):
            x = torch.randn(num_tokens, num_in, generator=generator).to(dtype)
            expected = Kernels().linear(weight, bias)(x)
            tolerance = 1e-4 if dtype == torch.float32 else 0.1
            found = CpuKernels().linear(weight, bias)(x)
            torch.testing.assert_close(found, expected, atol=tolerance, rtol=0.02)


def test_missing_or_wrong_prepacked_operator_is_not_used(monkeypatch) -> None:
    def missing(weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        raise RuntimeError("no such operator")

    def wrong(weight: torch.Tensor, bias: torch.Tensor | None) -> object:
        return lambda x: torch.zeros(len(x), len(weight))

    for broken in (missing, wrong):
        monkeypatch.setattr(cpu_linear, "_prepacked", broken)
        cpu_linear.has_prepacked_linear.cache_clear()
        assert not cpu_linear.has_prepacked_linear(torch.float32)
    monkeypatch.undo()
    cpu_linear.has_prepacked_linear.cache_clear()


def test_fastest_dtype_is_measured_quickly() -> None:
    assert cpu_linear.fastest_dtype(cpu_linear.bind_linear, [(64, 32), (512, 256)], budget_s=0.02) in (
        torch.float32,
        torch.bfloat16,
    )
