"""Keys and values as 8-bit floats: accuracy, scales of checkpoints, memory, and blocks that never mix formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints.weights import WeightsError, open_checkpoint
from engine.kernels.device import DeviceKernels
from engine.kernels.float8_kv import from_stored, to_stored
from engine.kernels.interface import FLOAT8, AttentionShape, KvPool
from engine.kernels.paged_attention import PagedAttention
from engine.kernels.reference import ReferenceAttention
from engine.layers.shard import Shard
from engine.models.decoder import Decoder
from engine.models.registry import read_config
from engine.scheduling.prefix_hash import PrefixHasher
from tests.engine.driver import Driver
from tests.engine.kernels.test_cpu import (
    NUM_LAYERS,
    SHAPES,
    Life,
    block_pool_of,
    float8_scales,
    pool_of,
    sinks_of,
)
from tests.engine.made_checkpoints import Pusher, runner_of, save_random

KINDS = ("llama 3 with scaled positions", "gemma2", "gpt-oss", "qwen3", "deepseek v3")
PROMPT = np.random.default_rng(1).integers(0, 150, 30).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_random(KINDS[0], folder)
    return folder


def with_scales(folder: Path, target: Path, **scales: torch.Tensor) -> Path:
    """Return a copy of the checkpoint with scales of keys and values in layer 1."""
    (target / "config.json").symlink_to(folder / "config.json")
    tensors = load_file(folder / "model.safetensors")
    names = {"keys": "k_scale", "values": "v_scale", "nested_keys": "k_proj.k_scale"}
    added = {f"model.layers.1.self_attn.{names[name]}": scale for name, scale in scales.items()}
    save_file(tensors | added, target / "model.safetensors")
    return target


# ── accuracy ──


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_every_kind_of_attention_are_close_to_those_of_float32(kind: str, tmp_path: Path) -> None:
    save_random(kind, tmp_path)
    exact, rounded, of_device = (
        Pusher(runner_of(tmp_path, kernels=kernels, kv_dtype=kv_dtype))
        for kernels, kv_dtype in ((None, "auto"), (None, "fp8"), (DeviceKernels(), "fp8"))
    )
    for chunk in (PROMPT[:20], PROMPT[20:28], PROMPT[28:29], PROMPT[29:]):
        expected, found = exact.push(chunk), rounded.push(chunk)
        assert torch.nn.functional.cosine_similarity(found, expected, 0) > 0.95
        assert not torch.equal(found, expected)
        assert torch.nn.functional.cosine_similarity(of_device.push(chunk), found, 0) > 0.99


def test_chunks_of_a_prompt_give_the_logits_of_the_whole(folder: Path) -> None:
    """Tokens of a chunk read their own keys as stored."""
    whole, parts = (Pusher(runner_of(folder, kv_dtype="fp8")) for _ in range(2))
    for first in range(0, 30, 6):
        last = parts.push(PROMPT[first : first + 6])
    torch.testing.assert_close(whole.push(PROMPT), last, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["grouped", "window, then all", "value within key", "capped, with sinks"])
def test_attention_over_blocks_equals_its_reference(name: str) -> None:
    shape, sinks, scales = SHAPES[name], sinks_of(name), float8_scales(SHAPES[name])
    life, pools = Life(3), (pool_of(shape, FLOAT8, scales), block_pool_of(shape, FLOAT8, scales))
    twins = ReferenceAttention(pools[0], shape, sinks), PagedAttention(pools[1], shape, sinks)
    for number in range(6):
        step = life.step()
        for twin in twins:
            twin.begin(step)
        for layer in range(NUM_LAYERS):
            generator = torch.Generator().manual_seed(number)
            qkv = torch.randn(len(step.slot_mapping), shape.query_width + shape.kv_width, generator=generator)
            expected, found = (twin.attend(layer, qkv.clone()) for twin in twins)
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_stored_numbers_are_rounded_to_their_heads_scale_and_limited_to_the_range() -> None:
    scales = torch.tensor([[0.5, 2.0]])
    kv = torch.tensor([[[[0.26, -1e6, 0.0]], [[0.26, 1e6, float("nan")]]]]).transpose(1, 2)  # [1, plane, G, D]
    stored = from_stored(to_stored(kv, scales), scales)
    assert stored[0, 0, 0].tolist() == [0.25, -224.0, 0.0]
    assert stored[0, 0, 1, :2].tolist() == [0.25, 896.0]
    assert stored[0, 0, 1, 2].isnan()


# ── scales of the checkpoint ──


def test_scales_are_those_of_the_checkpoint_or_one(folder: Path, tmp_path: Path) -> None:
    assert runner_of(folder, kv_dtype="fp8")._pool.scales.unique().tolist() == [1.0]
    scales = {"keys": torch.tensor([0.5]), "values": torch.tensor([0.25, 4.0]).view(2, 1, 1)}
    runner = runner_of(with_scales(folder, tmp_path, **scales), kv_dtype="fp8")
    assert runner._pool.scales.tolist() == [[[1, 1], [1, 1]], [[0.5, 0.5], [0.25, 4]], [[1, 1], [1, 1]]]


def test_a_rank_has_the_scales_of_its_heads(folder: Path, tmp_path: Path) -> None:
    with_scales(folder, tmp_path, nested_keys=torch.tensor([0.5, 4.0]))
    config, checkpoint = read_config(tmp_path), open_checkpoint(tmp_path)
    for rank, scale in enumerate((0.5, 4.0)):
        model = Decoder(config, torch.float32, torch.device("meta"), Shard(rank, 2))
        assert model.kv_scales(checkpoint)[1].tolist() == [[scale], [1.0]]


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.ones(3), r"layers\.1\.self_attn\.v_scale has shape \[3\], and the KV heads are 2"),
        (torch.tensor(0.0), r"layers\.1\.self_attn\.v_scale must be greater than 0"),
        (torch.tensor(float("inf")), r"layers\.1\.self_attn\.v_scale holds NaN or infinity"),
        (torch.tensor(1), r"layers\.1\.self_attn\.v_scale has type I64"),
    ],
)
def test_impossible_scales_are_rejected_by_name(
    scale: torch.Tensor, message: str, folder: Path, tmp_path: Path
) -> None:
    with_scales(folder, tmp_path, values=scale)
    with pytest.raises(WeightsError, match=message):
        runner_of(tmp_path, kv_dtype="fp8")
    runner_of(tmp_path)  # bfloat16 KV caches ignore the scales


# ── memory and blocks ──


def test_cache_of_the_same_size_has_four_times_the_blocks_of_float32(folder: Path) -> None:
    settings = {"num_blocks": 0, "kv_memory_bytes": 1 << 20}
    exact, rounded = (runner_of(folder, kv_dtype=kv_dtype, **settings) for kv_dtype in ("auto", "fp8"))
    assert rounded.num_blocks == (1 << 20) // (exact.kv_bytes // exact.num_blocks // 4)
    assert rounded.kv_bytes == rounded._pool.data.nbytes


def test_blocks_of_different_formats_never_have_the_same_hash(folder: Path) -> None:
    tags = [runner_of(folder, kv_dtype=kv_dtype).layout_tag for kv_dtype in ("auto", "fp8")]
    tokens = np.arange(16, dtype=np.int32)
    hashes: list[list[bytes]] = [[], []]
    for tag, own in zip(tags, hashes, strict=True):
        PrefixHasher(b"account", "revision", tag, 16).extend(own, tokens)
    assert len(hashes[0]) == len(hashes[1]) == 1
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize("make", [pool_of, block_pool_of])
def test_blocks_are_copied_zeroed_and_poisoned(make) -> None:
    shape = AttentionShape(2, 1, 4)
    pool: KvPool = make(shape, FLOAT8, float8_scales(shape))
    assert pool.data.float().isnan().all()
    pool.zero_blocks(np.array([1, 2], np.int32))
    pool.copy_blocks(np.array([1], np.int32), np.array([5], np.int32))
    is_zero = [not block.float().any() for block in pool.blocks]
    assert [index for index, zero in enumerate(is_zero) if zero] == [1, 2, 5]
    pool.poison([2])
    assert pool.blocks[2].float().isnan().all()


def test_prompt_of_cached_blocks_generates_the_same_tokens(folder: Path) -> None:
    runner = runner_of(folder, kv_dtype="fp8")
    with torch.inference_mode():
        runner.poison_kv()
    driver = Driver(runner, model_dir=folder)
    prompt = np.random.default_rng(2).integers(0, 150, 50).tolist()
    for _ in range(2):
        driver.add(prompt, max_tokens=8, temperature=0.0, ignore_eos=True)
        driver.run()
    assert driver.num_cached == {1: 0, 2: 48}
    assert driver.tokens[1] == driver.tokens[2]


# ── settings ──


def test_unknown_format_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="kv_dtype must be auto or fp8 \\(got 'int8'\\)"):
        runner_of(folder, kv_dtype="int8")


def test_device_below_compute_capability_8_9_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    fault = r"HEARTH_NODE_KV_DTYPE \(--kv-dtype\) fp8: 8-bit floats need compute capability 8.9 or later"
    with pytest.raises(ValueError, match=fault):
        runner_of(folder, kernels=DeviceKernels(), kv_dtype="fp8")
