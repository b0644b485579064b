"""The runner: loading, rejected models, and isolation of sequences."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints.weights import WeightsError
from engine.config import EngineConfig
from engine.devices.fake import FakeDevice
from engine.kernels.device import DeviceKernels
from engine.models.config import UnsupportedModel
from engine.runner import Runner
from tests.engine.driver import Driver
from tests.engine.made_checkpoints import Pusher, runner_of, save_random

KIND = "llama 3 with scaled positions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_random(KIND, folder)
    return folder


def changed(folder: Path, target: Path, **fields: object) -> Path:
    """Copy the checkpoint with changes to its config."""
    config = json.loads((folder / "config.json").read_text()) | fields
    (target / "config.json").write_text(json.dumps(config))
    (target / "model.safetensors").symlink_to(folder / "model.safetensors")
    return target


def stored_as(folder: Path, target: Path, dtype: torch.dtype) -> Path:
    (target / "config.json").symlink_to(folder / "config.json")
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, target / "model.safetensors")
    return target


# ── loading ──


def test_runner_reports_the_properties_of_the_model(folder: Path) -> None:
    runner = runner_of(folder, num_blocks=20, block_size=8)
    assert (runner.vocab_size, runner.num_blocks, runner.block_size) == (199, 20, 8)
    assert runner.max_model_len == 160  # what the pool holds; the model's context is 256
    assert runner_of(folder, max_model_len=100).max_model_len == 100
    assert runner_of(folder).max_model_len == 256
    assert runner.dtype == torch.float32
    assert runner.layout_tag != runner_of(folder, dtype="bfloat16", block_size=8).layout_tag


@pytest.mark.parametrize(
    ("free_bytes", "message"),
    [
        (100_000, r"the weights in torch.float32 need \d+ bytes .* and 100000 bytes .* are free on cpu; unload"),
        (1 << 20, r"the KV cache needs 10737\d+ bytes \(1.0 GiB\), and \d+ bytes .* lower HEARTH_NODE_KV_BYTES"),
    ],
)
def test_model_that_does_not_fit_in_memory_is_rejected_before_allocation(
    folder: Path, free_bytes: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.runner.free_memory_bytes", lambda _device: free_bytes)
    monkeypatch.setattr("engine.checkpoints.weights.load", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(MemoryError, match=message):
        runner_of(folder, num_blocks=0, kv_memory_bytes=1 << 30)


def test_load_to_a_device_reports_its_phases_and_leaves_no_pinned_memory(folder: Path) -> None:
    device = FakeDevice()
    config = EngineConfig(model_dir=folder, dtype="float32", num_blocks=8, max_sequences=2, max_step_tokens=64)
    runner = Runner(config, DeviceKernels(), steps_device=device)
    runner.warm_up()
    assert list(runner.load_phases.fields()) == [
        f"{name}_s"
        for name in ("context", "headers", "allocation", "weights", "read", "upload", "weight_check", "binding",
                     "rotary", "capture")
    ]  # fmt: skip
    assert device.num_pinned_bytes == 0


def test_kv_memory_determines_the_number_of_blocks(folder: Path) -> None:
    token_bytes = 3 * 2 * 2 * 8 * 4  # layers, keys and values, KV heads, head size, float32
    runner = runner_of(folder, num_blocks=0, kv_memory_bytes=token_bytes * 16 * 10 + 5)
    assert runner.num_blocks == 10


def test_automatic_kv_memory_takes_what_is_free_up_to_its_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.runner.free_memory_bytes", lambda _device: 2 << 30)
    auto = {"num_blocks": 0, "is_kv_auto": True, "max_sequences": 4}
    assert runner_of(folder, **auto, kv_memory_bytes=0).num_blocks == 2 * 4 * 256 // 16, "the model is small"
    token_bytes = 3 * 2 * 2 * 8 * 4
    assert runner_of(folder, **auto, kv_memory_bytes=token_bytes * 16 * 10).num_blocks == 10
    monkeypatch.setattr("engine.runner.free_memory_bytes", lambda _device: 300_000)
    with pytest.raises(MemoryError, match=r"the KV cache needs \d+ bytes \(1.0 GiB\)"):
        runner_of(folder, **auto, kv_memory_bytes=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_blocks": 0, "kv_memory_bytes": 100}, "kv_memory_bytes=100"),
        ({"max_model_len": 257}, "max_model_len must be at most 256"),
        ({"dtype": "float16"}, "float16"),
        ({"device": "cuda"}, "cuda"),
    ],
)
def test_invalid_settings_are_named(folder: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        runner_of(folder, **settings)


def test_auto_dtype_keeps_float32_and_chooses_the_faster_type_for_16_bit_checkpoints(
    folder: Path, tmp_path: Path, monkeypatch
) -> None:
    assert runner_of(folder, dtype="auto").dtype == torch.float32
    half = stored_as(folder, tmp_path, torch.bfloat16)
    for fast in (torch.float32, torch.bfloat16):
        monkeypatch.setattr("engine.runner.fastest_dtype", lambda bind, shapes, fast=fast: fast)
        assert runner_of(half, dtype="auto").dtype == fast


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_16_bit_checkpoints_run_in_either_precision_and_agree(
    stored: torch.dtype, folder: Path, tmp_path: Path
) -> None:
    half = stored_as(folder, tmp_path, stored)
    prompt = list(range(1, 30))
    exact, rounded = (Pusher(runner_of(half, dtype=dtype)).push(prompt) for dtype in ("float32", "bfloat16"))
    assert torch.nn.functional.cosine_similarity(exact, rounded, 0) > 0.999


def test_bfloat16_chunks_and_whole_prompts_agree_within_bfloat16(folder: Path) -> None:
    runner = runner_of(folder, dtype="bfloat16")
    prompt = np.random.default_rng(0).integers(0, 199, 70).tolist()
    whole = Pusher(runner, sequence_id=1).push(prompt)
    for chunk in (1, 3, 17):
        pusher = Pusher(runner, seed=chunk, sequence_id=chunk + 10)
        for first in range(0, 70, chunk):
            logits = pusher.push(prompt[first : first + chunk])
        assert torch.nn.functional.cosine_similarity(logits, whole, 0) > 0.999


def test_config_that_does_not_match_the_weights_is_rejected_before_allocation(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="has shape"):
        runner_of(changed(folder, tmp_path, intermediate_size=1 << 20, vocab_size=1 << 24))


def test_config_with_more_layers_than_weights_is_rejected(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"layers\.3\..* missing"):
        runner_of(changed(folder, tmp_path, num_hidden_layers=4))


def test_config_with_fewer_layers_than_weights_is_rejected(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="not used by this architecture"):
        runner_of(changed(folder, tmp_path, num_hidden_layers=2))


def test_unsupported_architecture_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="FalconForCausalLM"):
        runner_of(changed(folder, tmp_path, architectures=["FalconForCausalLM"]))


def test_loading_imports_neither_transformers_nor_a_pickle_reader(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from engine.config import EngineConfig; from engine.runner import Runner\n"
        f"Runner(EngineConfig(model_dir=Path({str(folder)!r}), num_blocks=4))\n"
        "print([name for name in ('transformers', 'safetensors', 'huggingface_hub') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# ── running ──


def test_sequences_read_only_kv_that_was_written(folder: Path) -> None:
    """A pool filled with NaN gives the same tokens for sequences that share blocks, end and are preempted."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 199, int(rng.integers(1, 50))).tolist() for _ in range(12)]
    prompts[5] = prompts[4][:20] + prompts[5]

    def run(is_poisoned: bool) -> list[list[int]]:
        runner = runner_of(folder, num_blocks=20)
        if is_poisoned:
            runner.poison_kv()
        driver = Driver(runner)
        for prompt in prompts:
            driver.add(prompt, max_tokens=40, temperature=0.8, seed=3, ignore_eos=True)
        driver.run()
        assert set(driver.finishes.values()) == {"length"}
        return [driver.tokens[sequence_id] for sequence_id in sorted(driver.tokens)]

    assert run(True) == run(False)


def test_sequence_with_non_finite_logits_ends_with_an_error_alone(folder: Path) -> None:
    def run(is_hurt: bool) -> Driver:
        runner = runner_of(folder)
        driver = Driver(runner)
        for index in range(3):
            driver.add([index + 1] * 20, max_tokens=30, temperature=0.7, seed=index, ignore_eos=True)
        for _ in range(5):
            driver.step()
        if is_hurt:
            driver.add([77] * 3, max_tokens=30, temperature=0.7, seed=9, ignore_eos=True)
            driver.step()
            table = driver.engine.table
            slot = int(np.flatnonzero(table.sequence_id == 4)[0])
            runner.poison_kv(table.block_table[slot, :1])
        driver.run()
        return driver

    hurt, healthy = run(True), run(False)
    assert hurt.finishes[4] == "error"
    assert [hurt.tokens[index] for index in (1, 2, 3)] == [healthy.tokens[index] for index in (1, 2, 3)]


def test_runner_counts_forward_tokens(folder: Path) -> None:
    runner = runner_of(folder)
    driver = Driver(runner)
    driver.add([5] * 20, max_tokens=4, temperature=0.0, ignore_eos=True)
    driver.run()
    assert (runner.num_forward_tokens, runner.num_steps) == (20 + 3, 4)
    assert runner.num_forward_tokens == driver.engine.num_computed_tokens


def test_seeded_sequence_samples_the_same_alone_and_in_a_batch(folder: Path) -> None:
    runner = runner_of(folder, num_blocks=256)
    alone, crowd = Driver(runner), Driver(runner)
    settings = {"max_tokens": 40, "temperature": 1.0, "top_p": 0.95, "seed": 11, "ignore_eos": True}
    first = alone.add(list(range(30)), **settings)
    alone.run()
    for index in range(15):
        crowd.add([index] * (index + 1), max_tokens=5 * index + 1, temperature=1.0, ignore_eos=True)
    same = crowd.add(list(range(30)), **settings)
    crowd.run()
    assert crowd.tokens[same] == alone.tokens[first]


def test_runner_can_be_reused_by_another_engine(folder: Path) -> None:
    """Sequence ids repeat, and nothing cached for the first engine's sequences may be used for the second's."""
    runner = runner_of(folder)
    runs = []
    for prompt in ([3] * 17, [9] * 17, [3] * 17):
        driver = Driver(runner)
        sequence_id = driver.add(prompt, max_tokens=20, temperature=0.0, ignore_eos=True)
        driver.run()
        runs.append(driver.tokens[sequence_id])
    assert runs[0] == runs[2] != runs[1]


def test_runner_needs_only_its_config(folder: Path) -> None:
    assert Runner(EngineConfig(model_dir=folder)).num_blocks > 0
