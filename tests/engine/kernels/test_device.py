"""The GPU code path without a GPU: operators and attention equal their references in torch, the Triton kernel does so
in the interpreter, and every step of every family stays on its device."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from engine import runner as runner_module
from engine.adapters import slot_pool
from engine.adapters.slot_pool import AdapterShape
from engine.adapters.updates import AdapterAdded
from engine.checkpoints import weights
from engine.config import EngineConfig
from engine.inputs import NO_SAMPLING, StepInputs
from engine.kernels import device as device_module
from engine.kernels import device_low_rank, paged_attention
from engine.kernels.device import DeviceKernels
from engine.kernels.interface import AttentionShape, AttentionWindow
from engine.kernels.launch import (
    ITEM_WIDTH,
    AttentionLayer,
    Backend,
    DecodeParts,
    DevicePlan,
    HeadUpdate,
    SplitRule,
    chunk_tokens,
    max_chunk_entries,
    split_rule,
    write_plans,
)
from engine.kernels.paged_attention import PagedAttention, backend_for
from engine.kernels.reference import ReferenceAttention
from engine.kernels.upload import Upload
from engine.layers.shard import WHOLE, Shard
from engine.runner import Runner
from tests.engine.adapters.made import random_matrices
from tests.engine.kernels.test_cpu import NUM_LAYERS, SHAPES, Life, block_pool_of, pool_of, sinks_of
from tests.engine.made_checkpoints import KINDS, Pusher, runner_of, save_random

GPU = torch.device("cuda", 0)
TRITON = Path(__file__).parents[3] / ".cache" / "triton" / "site"  # see scripts/triton.sh
QUICK = ("deepseek v3", "gpt-oss", "olmo2")


def each_kind(*quick: str) -> list[Any]:
    """Parametrize over all kinds of checkpoints. Kinds other than these run only with the full tests."""
    return [pytest.param(kind, marks=[] if kind in quick else pytest.mark.full) for kind in KINDS]


@pytest.mark.parametrize("name", SHAPES)
def test_block_attention_equals_its_reference_for_any_steps(name: str) -> None:
    shape, sinks = SHAPES[name], sinks_of(name)
    life, pools = Life(3), (pool_of(shape), block_pool_of(shape))
    twins = ReferenceAttention(pools[0], shape, sinks), PagedAttention(pools[1], shape, sinks)
    for number in range(12):
        step = life.step()
        for twin in twins:
            twin.begin(step)
        for layer in range(NUM_LAYERS):
            generator = torch.Generator().manual_seed(number)
            qkv = torch.randn(len(step.slot_mapping), shape.query_width + shape.kv_width, generator=generator)
            expected, found = (twin.attend(layer, qkv.clone()) for twin in twins)
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["grouped", "with sinks", "value within key"])
def test_plan_with_padding_gives_the_results_of_its_step(name: str) -> None:
    shape, sinks, life = SHAPES[name], sinks_of(name), Life(3)
    pools = block_pool_of(shape), block_pool_of(shape)
    twins = [PagedAttention(pool, shape, sinks) for pool in pools]
    for _ in range(4):
        step = life.step()
        num_tokens, num_rows, size = len(step.slot_mapping), len(step.context_lens), twins[1].chunk_tokens
        chunks, decode = np.ones((40, 4), np.int32), np.ones((9, 3), np.int32)
        slots = np.arange(num_rows, dtype=np.int32)[::-1] + 3
        write_plans(chunks, decode, slots, step.query_starts, step.context_lens, step.num_decode_rows, size)
        tables = np.full((num_rows + 3, 24), -1, np.int32)
        tables[slots] = step.block_tables
        mapping = torch.cat((step.slot_mapping, torch.tensor([-1, -1])))
        plan = DevicePlan(torch.from_numpy(chunks), torch.from_numpy(decode), torch.from_numpy(tables), mapping)
        qkv = torch.randn(num_tokens + 2, shape.query_width + shape.kv_width)
        twins[0].begin(step)
        twins[1].begin(plan)
        for layer in range(NUM_LAYERS):
            expected, found = twins[0].attend(layer, qkv[:num_tokens]), twins[1].attend(layer, qkv)
            torch.testing.assert_close(found[:num_tokens], expected)
            assert found[num_tokens:].isfinite().all()
    assert torch.equal(*(pool.data.nan_to_num(-7.0) for pool in pools))


def test_plans_cover_every_token_once_and_surplus_entries_are_zero() -> None:
    starts, lens = np.array([0, 1, 2, 19, 24], np.int32), np.array([7, 1, 40, 5], np.int32)
    slots = np.array([9, 3, 5, 0], np.int32)
    chunks, decode = np.ones((max_chunk_entries(22, 2, 4), 4), np.int32), np.ones((3, 3), np.int32)
    write_plans(chunks, decode, slots, starts, lens, 2, 4)
    assert decode.tolist() == [[9, 0, 7], [3, 1, 1], [0, 0, 0]]
    tokens = [(slot, first + i, position + i) for slot, first, n, position in chunks.tolist() for i in range(n)]
    assert [token for _, token, _ in tokens] == list(range(2, 24))
    assert [slot for slot, _, _ in tokens] == [5] * 17 + [0] * 5
    assert [position for _, _, position in tokens] == [*range(23, 40), *range(5)]
    assert not chunks[7:].any()
    with pytest.raises(ValueError, match="an attention plan of 1 entries is too small for 2"):
        write_plans(chunks, decode[:1], slots, starts, lens, 2, 4)


@pytest.mark.parametrize("window", [AttentionWindow(), AttentionWindow(size=100), AttentionWindow(chunk=90)])
def test_parts_cover_the_visible_keys_and_depend_only_on_the_context(window: AttentionWindow) -> None:
    split, rule = backend_for(torch.device("cpu")).split, SplitRule(128, 4)
    lens = [1, 64, 128, 129, 0, 513, 5000]
    plan = torch.tensor([[slot, slot + 10, length] for slot, length in enumerate(lens)], dtype=torch.int32)
    parts = split(plan, window, rule)
    for row, length in enumerate(lens):
        items = parts.items[parts.starts[row] : parts.starts[row + 1]].tolist()
        alone = split(plan[row : row + 1], window, rule)
        assert items == alone.items[: len(items)].tolist()
        if length == 0:
            assert items == []
            continue
        first = length - int(window.num_visible(np.array([length], np.int32))[0])
        assert (items[0][3], items[-1][4]) == (first // 64 * 64, length)
        assert [item[3] for item in items[1:]] == [item[4] for item in items[:-1]]
        assert {item[5] for item in items} == {len(items)} <= {1, 2, 3, 4}
        assert [item[6] for item in items] == list(range(len(items)))


def test_models_with_few_kv_heads_have_shorter_parts() -> None:
    assert split_rule(AttentionShape(32, 8, 128)) == SplitRule(512, 32)
    assert split_rule(AttentionShape(16, 2, 128)) == SplitRule(128, 64)
    assert split_rule(AttentionShape(128, 1, 576, value_dim=512)) == SplitRule(128, 16)


def test_unknown_attention_kernels_are_rejected() -> None:
    with pytest.raises(ValueError, match="attention must be one of auto, triton, torch"):
        backend_for(torch.device("cpu"), "fast")


@pytest.mark.parametrize("kind", each_kind(*QUICK))
def test_device_operators_give_the_same_logits(kind: str, tmp_path: Path) -> None:
    transformers.logging.disable_progress_bar()
    save_random(kind, tmp_path)
    one, other = (Pusher(runner_of(tmp_path, kernels=kernels)) for kernels in (None, DeviceKernels()))
    prompt = np.random.default_rng(1).integers(0, 150, 30).tolist()
    for chunk in (prompt[:20], prompt[20:28], prompt[28:29], prompt[29:]):
        torch.testing.assert_close(other.push(chunk), one.push(chunk), atol=2e-5, rtol=1e-4)


def test_device_operators_add_adapters_like_those_of_the_cpu(tmp_path: Path) -> None:
    transformers.logging.disable_progress_bar()
    save_random("llama 2", tmp_path)
    logits = []
    for kernels in (None, DeviceKernels()):
        runner = runner_of(tmp_path, kernels=kernels)
        matrices = random_matrices(runner.adapters.sites)
        runner.adapters.apply(AdapterAdded(1, AdapterShape(8, tuple(sorted(matrices))), 4, matrices))
        plain, adapted = (
            runner.forward(replace(mixed_step(), adapters=np.array([0, handle], np.int32))) for handle in (0, 1)
        )
        assert not torch.allclose(plain[1], adapted[1], atol=0.1)
        logits.append(adapted[1])  # row 0 reads blocks that nothing has written
    torch.testing.assert_close(*logits, atol=2e-5, rtol=1e-4)


def interpreted(module: str, *arguments: str) -> Any:
    """Run a module with Triton's interpreter and return its output, JSON. Skips the test without Triton."""
    paths = [each for each in sys.path if each] + [str(TRITON)]
    if importlib.util.find_spec("triton") is None and not (TRITON / "triton").is_dir():
        pytest.skip("no Triton here: sh scripts/triton.sh brings it")
    environ = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_interpreted_triton_kernels_equal_their_references() -> None:
    differences = interpreted("tests.engine.kernels.interpreted_attention", *SHAPES)
    assert set(differences) == set(SHAPES)
    worst = {(name, kind): each for name, found in differences.items() for kind, each in found.items() if each > 1e-5}
    assert worst == {}


# ── a simulated device with torch's rules for mixing devices and for reading back ──


class _Pretence(TorchFunctionMode):
    """Runs Python's index and conversion operators on tensors of a device that this build of torch does not support.

    Tensors on the host can be read; reading a tensor on the device raises.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.__getitem__:
            return _indexed(*args)
        if function is torch.Tensor.__setitem__:
            target = _indexed(args[0], args[1])
            return None if isinstance(args[2], torch.Tensor) else target.fill_(args[2])
        if function is torch.Tensor.copy_:  # copies between any two devices are allowed
            assert args[1].expand_as(args[0]).shape == args[0].shape
            return args[0]
        if function is torch.Tensor.contiguous:
            return args[0].clone(memory_format=torch.contiguous_format)
        if function is torch.Tensor.numpy:
            assert args[0].device.type == "cpu"
            return np.zeros(tuple(args[0].shape), np.int64)
        assert function is not torch.Tensor.cpu, "a step waits for its device"
        return function(*args, **(kwargs or {}))


def _indexed(x: torch.Tensor, index: Any) -> torch.Tensor:
    dim, items = 0, index if isinstance(index, tuple) else (index,)
    for place, each in enumerate(items):
        if each is Ellipsis:
            dim = x.dim() - (len(items) - place - 1)
        elif isinstance(each, slice):
            x, dim = torch.ops.aten.slice(x, dim, each.start, each.stop, each.step or 1), dim + 1
        elif isinstance(each, torch.Tensor):
            x, dim = x.index_select(dim, each), dim + 1
        else:
            x = x.select(dim, each)
    return x


class _Ranks:
    """Collectives of a rank whose peers contribute zeros to sums and equal values to gathers."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        assert x.device == GPU
        return x

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        assert x.device == GPU
        return [x, x]


@contextmanager
def pretended_gpu(monkeypatch: pytest.MonkeyPatch, num_tensors: list[int], num_added: list[int]) -> Iterator[None]:
    """Simulate tensors that have a device and no values. An operator raises if its operands are on two devices or if
    the host would have to wait for the device.

    Appends to `num_tensors` the tensors that are loaded and to `num_added` the rows that adapters add to.
    """

    def load(_checkpoint: Any, destinations: dict[str, Any], **_more: Any) -> dict[str, float]:
        tensors = [getattr(each, "tensor", each) for each in destinations.values()]
        assert all(each.device == GPU for each in tensors)
        num_tensors.append(len(tensors))
        return {}

    def check(plan: DevicePlan, layer: AttentionLayer, *more: torch.Tensor) -> None:
        operands = [layer.kv, plan.chunk_plan, plan.decode_plan, plan.block_tables, plan.slot_mapping, *more]
        assert all(each.device == GPU and each.stride(-1) == 1 for each in [*operands, layer.sinks] if each is not None)

    def store(qkv: torch.Tensor, slots: torch.Tensor, update: HeadUpdate, layer: AttentionLayer) -> torch.Tensor:
        lookup = update.lookup
        more = [] if lookup is None else [lookup.table, lookup.positions]
        assert all(each.device == GPU for each in [qkv, slots, layer.kv, *more, update.norm_weight] if each is not None)
        return qkv.new_empty(len(qkv), layer.shape.query_width)

    def split(plan: torch.Tensor, _window: AttentionWindow, rule: SplitRule) -> DecodeParts:
        return DecodeParts(plan.new_empty(len(plan) * rule.max_parts, ITEM_WIDTH), plan.new_empty(len(plan) + 1))

    def chunks(queries: torch.Tensor, out: torch.Tensor, plan: DevicePlan, layer: AttentionLayer) -> None:
        check(plan, layer, queries, out)

    def decode(
        queries: torch.Tensor, out: torch.Tensor, plan: DevicePlan, parts: DecodeParts, partial: Any, layer: Any
    ) -> None:
        check(plan, layer, queries, out, parts.items, partial.mixed, partial.weight)

    def add_low_rank(*operands: Any) -> None:
        *_, addresses, blocks, tokens, x, y = operands
        assert all(each.device == GPU for each in (addresses, blocks, tokens.rows, tokens.tiles, x, y))
        assert len(tokens.rows) == len(x) == len(y)
        num_added.append(len(x))

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (80 << 30, 80 << 30))
    monkeypatch.setattr(weights, "load", load)
    backend = Backend(store, chunks, split, decode)
    monkeypatch.setattr(paged_attention, "backend_for", lambda _device, _name: backend)
    monkeypatch.setattr(device_module, "has_triton", lambda _device: False)  # kernels need values; see `Kernels`
    monkeypatch.setattr(device_low_rank, "_launch", add_low_rank)
    monkeypatch.setattr(slot_pool, "_address", lambda _slot: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(runner_module, "CudaDevice", lambda _device: None)  # graphs have tests of their own
    monkeypatch.setattr(runner_module, "sample_on_device", lambda logits, _sampling: logits)
    with FakeTensorMode(allow_non_fake_inputs=False), _Pretence():
        yield


@pytest.mark.parametrize(
    "shard", [Shard(0, 2, _Ranks()), pytest.param(WHOLE, marks=pytest.mark.full)], ids=["one of two", "alone"]
)
@pytest.mark.parametrize("kind", each_kind(*QUICK))
def test_step_on_a_gpu_mixes_no_devices_and_never_synchronizes(
    kind: str, shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers.logging.disable_progress_bar()
    save_random(kind, tmp_path)
    num_tensors: list[int] = []
    num_added: list[int] = []
    with pretended_gpu(monkeypatch, num_tensors, num_added):
        runner = Runner(EngineConfig(tmp_path, dtype="bfloat16", device="cuda", num_blocks=8), shard=shard)
        runner.warm_up()
        runner.adapters.apply(zero_adapter(runner.adapters.sites))
        logits = runner.run(replace(mixed_step(), adapters=np.array([1, 0], np.int32)))
        runner.wipe(np.array([1, 3], np.int32))
    assert num_tensors[0] > 10
    assert {6, 2} <= set(num_added)  # all layers but a part of the last one have all tokens
    assert isinstance(logits, torch.Tensor)
    assert (logits.device, logits.dtype, tuple(logits.shape)) == (GPU, torch.float32, (2, runner.vocab_size))


def zero_adapter(sites: dict[str, tuple[int, int]]) -> AdapterAdded:
    """Return an adapter of all modules that adds nothing."""
    matrices = {name: (torch.zeros(8, num_in), torch.zeros(num_out, 8)) for name, (num_in, num_out) in sites.items()}
    return AdapterAdded(1, AdapterShape(8, tuple(sorted(sites))), 4, matrices)


def mixed_step() -> StepInputs:
    """Return a step with a decode row and a chunk of a prompt."""
    return StepInputs(
        token_ids=torch.from_numpy(np.arange(6)),
        positions=torch.from_numpy(np.array([17, 0, 1, 2, 3, 4])),
        slot_mapping=torch.from_numpy(np.array([17, 32, 33, 34, 35, 36])),
        logit_rows=torch.from_numpy(np.array([0, 5])),
        query_starts=np.array([0, 1, 6], np.int32),
        context_lens=np.array([18, 5], np.int32),
        block_tables=np.array([[0, 1], [2, 0]], np.int32),
        sequence_ids=np.array([1, 2]),
        num_decode_rows=1,
        sampling=NO_SAMPLING,
    )


# ── transfers ──


def test_arrays_of_one_upload_are_aligned() -> None:
    arrays = [np.arange(5, dtype=np.int32), np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(0, dtype=np.int32)]
    moved = Upload(torch.device("meta")).move(arrays)
    assert [tuple(each.shape) for each in moved] == [(5,), (2, 3), (0,)]
    assert [each.storage_offset() * 4 % 16 for each in moved] == [0, 0, 0]
    assert [each.storage_offset() for each in moved[:2]] == [0, 8]
    on_host = Upload(torch.device("cpu")).move(arrays)
    assert all(torch.equal(a, torch.from_numpy(b)) for a, b in zip(on_host, arrays, strict=True))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_interpreted_sampler_equals_the_cpu_sampler_for_all_parameters() -> None:
    found = interpreted("tests.engine.kernels.interpreted_sampler")
    assert {kind: rows for kind, rows in found["different"].items() if rows} == {}
    assert found["alone"] == found["together"]
    assert found["chi_square"] < 1
    assert found["right"] == [True, True]


def test_chunk_entries_fill_the_matrix_units() -> None:
    narrow, latent = AttentionShape(32, 8, 128), AttentionShape(128, 1, 576, value_dim=512)
    for shape, dtype, size in ((narrow, torch.bfloat16, 16), (narrow, torch.float32, 4), (latent, torch.bfloat16, 1)):
        assert chunk_tokens(shape, dtype) == size


# ── the pool ──


@pytest.mark.parametrize("pool_of_layout", [pool_of, block_pool_of])
def test_blocks_of_a_pool_are_zeroed_and_copied_in_all_layers(pool_of_layout: Any) -> None:
    pool = pool_of_layout(SHAPES["grouped"])
    pool.poison()
    pool.zero_blocks(np.array([2, 5], np.int32))
    pool.copy_blocks(np.array([2, 0], np.int32), np.array([1, 5], np.int32))
    is_zero = (pool.blocks == 0).flatten(1).all(1)
    is_poisoned = pool.blocks.isnan().flatten(1).all(1)
    assert is_zero.nonzero().flatten().tolist() == [1, 2]
    assert int(is_poisoned.sum()) == pool.num_blocks - 2
    pool.poison([1])
    assert pool.blocks[1].isnan().all()


def test_block_of_all_layers_is_one_span_with_the_tokens_of_each_head_together() -> None:
    pool = block_pool_of(SHAPES["grouped"])
    assert pool.num_layers == 2
    assert pool.data[3].is_contiguous()
    attention = PagedAttention(pool, SHAPES["grouped"])
    qkv = torch.randn(1, 80)
    attention.begin(decode_step(position=9, blocks=[7, 3, 4]))
    attention.attend(1, qkv)
    assert torch.equal(pool.data[4, 1, :, :, 1], qkv[0, 48:].view(2, 2, 8))


def decode_step(position: int, blocks: list[int]) -> Any:
    block_size = 4
    return DevicePlan(
        torch.zeros(0, 4, dtype=torch.int32),
        torch.tensor([[0, 0, position + 1]], dtype=torch.int32),
        torch.tensor([blocks], dtype=torch.int32),
        torch.tensor([blocks[position // block_size] * block_size + position % block_size]),
    )


def test_automatic_kv_cache_is_as_large_as_the_sequences_can_use_or_the_device_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers.logging.disable_progress_bar()
    save_random(QUICK[0], tmp_path)
    config = EngineConfig(tmp_path, dtype="bfloat16", device="cuda", kv_memory_bytes=0, is_kv_auto=True)
    with pretended_gpu(monkeypatch, [], []):
        runner = Runner(config)
        contexts = 2 * config.max_sequences
        assert runner.num_blocks == contexts * -(-runner.model_config.max_positions // config.block_size)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (1 << 30, 80 << 30))
        with pytest.raises(MemoryError, match="lower HEARTH_NODE_KV_BYTES"):
            Runner(config)
