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
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from engine import runner as runner_module
from engine.checkpoints import weights
from engine.checkpoints.stored import Files
from engine.config import EngineConfig
from engine.inputs import NO_SAMPLING, StepInputs
from engine.kernels import paged_attention
from engine.kernels.device import DeviceKernels
from engine.kernels.interface import AttentionShape
from engine.kernels.launch import AttentionLayer, StepBlocks, plan_blocks, tokens_per_block
from engine.kernels.paged_attention import PagedAttention
from engine.kernels.reference import ReferenceAttention
from engine.kernels.upload import Upload
from engine.layers.moe import Experts
from engine.layers.shard import WHOLE, Shard
from engine.runner import Runner
from engine.sampler import sample, sample_on_device
from tests.engine.kernels.test_cpu import NUM_LAYERS, SHAPES, Life, pool_of, sinks_of
from tests.engine.made_checkpoints import KINDS, Pusher, runner_of, save_random
from tests.engine.test_sampler import inputs_of

GPU = torch.device("cuda", 0)
TRITON = Path(__file__).parents[3] / ".cache" / "triton" / "site"  # see scripts/triton.sh
QUICK = ("deepseek v3", "gpt-oss", "olmo2")


def each_kind(*quick: str) -> list[Any]:
    """Parametrize over all kinds of checkpoints. Kinds other than these run only with the full tests."""
    return [pytest.param(kind, marks=[] if kind in quick else pytest.mark.full) for kind in KINDS]


@pytest.mark.parametrize("name", SHAPES)
def test_block_attention_equals_its_reference_for_any_steps(name: str) -> None:
    shape, sinks = SHAPES[name], sinks_of(name)
    life, pools = Life(3), (pool_of(shape), pool_of(shape))
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


def test_blocks_cover_every_token_once_and_have_one_row() -> None:
    starts = np.array([0, 1, 2, 19, 24], np.int32)
    plan = plan_blocks(starts, np.array([7, 1, 40, 5], np.int32), 4)
    tokens = [(row, first + i, position + i) for row, first, n, position in plan.tolist() for i in range(n)]
    assert [token for _, token, _ in tokens] == list(range(24))
    assert [row for row, _, _ in tokens] == [0] + [1] + [2] * 17 + [3] * 5
    assert [position for _, _, position in tokens] == [6, 0, *range(23, 40), *range(5)]


@pytest.mark.parametrize("kind", each_kind(*QUICK))
def test_device_operators_give_the_same_logits(kind: str, tmp_path: Path) -> None:
    transformers.logging.disable_progress_bar()
    save_random(kind, tmp_path)
    one, other = (Pusher(runner_of(tmp_path, kernels=kernels)) for kernels in (None, DeviceKernels()))
    prompt = np.random.default_rng(1).integers(0, 150, 30).tolist()
    for chunk in (prompt[:20], prompt[20:28], prompt[28:29], prompt[29:]):
        torch.testing.assert_close(other.push(chunk), one.push(chunk), atol=2e-5, rtol=1e-4)


@pytest.mark.full
def test_interpreted_triton_kernel_equals_its_reference() -> None:
    paths = [each for each in sys.path if each] + [str(TRITON)]
    if importlib.util.find_spec("triton") is None and not (TRITON / "triton").is_dir():
        pytest.skip("no Triton here: sh scripts/triton.sh brings it")
    environ = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "tests.engine.kernels.interpreted_attention", *SHAPES]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    differences = json.loads(done.stdout)
    assert set(differences) == set(SHAPES)
    assert max(differences.values()) < 1e-5


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
def pretended_gpu(monkeypatch: pytest.MonkeyPatch, num_tensors: list[int]) -> Iterator[None]:
    """Simulate tensors that have a device and no values. An operator raises if its operands are on two devices or if
    the host would have to wait for the device.
    """

    def load(_checkpoint: Any, destinations: dict[str, Any], **_more: Any) -> None:
        tensors = [getattr(each, "tensor", each) for each in destinations.values()]
        assert all(each.device == GPU for each in tensors)
        num_tensors.append(len(tensors))

    def launch(qkv: torch.Tensor, kv: torch.Tensor, blocks: StepBlocks, layer: AttentionLayer) -> torch.Tensor:
        operands = [qkv, kv, blocks.plan, blocks.block_tables, *([] if layer.sinks is None else [layer.sinks])]
        assert all(each.device == GPU and each.stride(-1) == 1 for each in operands)
        return qkv.new_empty(len(qkv), layer.shape.output_width)

    def chosen(experts: Experts, flat: torch.Tensor) -> tuple[list[int], list[int], int]:
        assert flat.device == GPU
        return [0, 1], [1, len(flat) - 1], 0

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (80 << 30, 80 << 30))
    monkeypatch.setattr(weights, "load", load)
    monkeypatch.setattr(paged_attention, "_launch_for", lambda _device: launch)
    monkeypatch.setattr(Experts, "_chosen", chosen)
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
    with pretended_gpu(monkeypatch, num_tensors):
        runner = Runner(EngineConfig(tmp_path, dtype="bfloat16", device="cuda", num_blocks=8), shard=shard)
        runner.warm_up()
        logits = runner.run(mixed_step())
        runner.wipe(np.array([1, 3], np.int32))
    assert num_tensors[0] > 10
    assert isinstance(logits, torch.Tensor)
    assert (logits.device, logits.dtype, tuple(logits.shape)) == (GPU, torch.float32, (2, runner.vocab_size))


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


def test_parameter_is_loaded_to_a_device(tmp_path: Path) -> None:
    save_random("llama 2", tmp_path)
    checkpoint = weights.open_checkpoint(tmp_path)
    source = checkpoint.find("model.embed_tokens.weight")
    assert source is not None
    expected, found = torch.empty(source.shape), torch.empty(source.shape)
    with Files() as files:
        for first, last in source.pieces():
            source.fill(files, expected, first, last)
        weights.fill_through_host(source, files, found)
    assert torch.equal(found, expected)
    assert found.any()
    weights.load(checkpoint, {source.name: torch.empty(source.shape, device="meta")}, is_whole=False)


def test_greedy_rows_are_sampled_on_the_device() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    logits[2, 7] = float("nan")
    greedy, drawn = inputs_of([{}] * 4), inputs_of([{"temperature": 0.8}] * 4)
    for inputs in (greedy, drawn):
        expected, found = sample(logits.clone(), inputs), sample_on_device(logits.clone(), inputs)
        healthy = [0, 1, 3]
        assert found.token_ids[healthy].tolist() == expected.token_ids[healthy].tolist()
        assert found.is_failed is not None
        assert found.is_failed.tolist() == [False, False, True, False]
    assert found.token_ids.dtype == sample_on_device(logits, greedy).token_ids.dtype == np.int32


def test_block_size_fills_the_matrix_units() -> None:
    narrow, latent = AttentionShape(32, 8, 128), AttentionShape(128, 1, 576, value_dim=512)
    for shape, dtype, sizes in (
        (narrow, torch.bfloat16, [4, 16]),
        (narrow, torch.float32, [4, 4]),
        (latent, torch.bfloat16, [1, 1]),
    ):
        assert [tokens_per_block(shape, dtype, is_decode=each) for each in (True, False)] == sizes
