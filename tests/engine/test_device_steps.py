"""Steps on a device, with graphs recorded on a CPU: tokens equal those of the synchronous runner, and captured work
that depends on the host is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from engine.config import EngineConfig
from engine.devices.recorded import CaptureError, RecordedDevice, as_kernel
from engine.kernels import torch_attention
from engine.kernels.device import DeviceKernels
from engine.kernels.launch import Backend
from engine.models.decoder import Layer
from engine.runner import Runner
from tests.engine.driver import Driver
from tests.engine.made_checkpoints import KINDS, save_random

SETTINGS: dict[str, Any] = {"dtype": "float32", "num_blocks": 40, "max_sequences": 8, "max_step_tokens": 64}
QUICK = ("llama 3 with scaled positions", "gpt-oss", "gemma 3")


def each_kind() -> list[Any]:
    return [pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.full) for kind in KINDS]


@pytest.fixture(autouse=True)
def kernels_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = torch_attention.BACKEND
    launches = {name: as_kernel(getattr(backend, name)) for name in ("store", "chunks", "split", "decode")}
    monkeypatch.setattr(torch_attention, "BACKEND", Backend(**launches))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    transformers.logging.disable_progress_bar()
    return tmp_path


def new_driver(folder: Path, device: RecordedDevice | None, **settings: Any) -> Driver:
    config = EngineConfig(model_dir=folder, **(SETTINGS | settings))
    runner = Runner(config, DeviceKernels(), steps_device=device)
    with torch.inference_mode():
        runner.poison_kv()
    return Driver(runner, model_dir=folder, **{"max_sequences": 8, "max_step_tokens": 64} | settings)


def run_traffic(driver: Driver) -> dict[int, list[int]]:
    """Run sequences of many lengths and parameters that start and end at different steps."""
    rng = np.random.default_rng(0)
    parameters: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.9},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 0.8, "top_k": 8, "min_p": 0.02},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 0.6, "logprobs": 2},
    ]
    for number in range(24):
        prompt = rng.integers(1, 150, int(rng.integers(1, 60))).tolist()
        max_tokens = int(rng.integers(1, 24))
        driver.add(prompt, max_tokens=max_tokens, ignore_eos=True, seed=number, **parameters[number % len(parameters)])
        if number % 3 == 2:
            driver.step()
        if number == 12:
            driver.abort(9)
    driver.run()
    return dict(driver.tokens)


@pytest.mark.parametrize("kind", each_kind())
def test_tokens_equal_those_of_the_synchronous_runner(kind: str, folder: Path) -> None:
    save_random(kind, folder)
    device = RecordedDevice()
    driver = new_driver(folder, device)
    found = run_traffic(driver)
    assert found == run_traffic(new_driver(folder, None))
    steps = driver.runner._steps.num_steps
    assert device.num_captures >= 3
    assert steps["graph"] > 5
    assert steps["failed"] == 0


def test_steps_with_as_many_rows_of_logits_as_tokens_sample_from_the_right_tokens(folder: Path) -> None:
    """With many slots, small buckets have a row of logits for each token, also for chunks of prompts."""
    save_random(QUICK[0], folder)
    settings = {"max_sequences": 64, "num_blocks": 120}
    found = run_traffic(new_driver(folder, RecordedDevice(), **settings))
    assert found == run_traffic(new_driver(folder, None, **settings))


@pytest.mark.full
def test_tokens_of_a_cache_in_8_bit_floats_equal_those_of_the_synchronous_runner(folder: Path) -> None:
    save_random(QUICK[0], folder)
    found = run_traffic(new_driver(folder, RecordedDevice(), kv_dtype="fp8"))
    assert found == run_traffic(new_driver(folder, None, kv_dtype="fp8"))


def test_without_graphs_every_step_runs_eagerly(folder: Path) -> None:
    save_random(QUICK[0], folder)
    device = RecordedDevice()
    driver = new_driver(folder, device, has_graphs=False)
    assert run_traffic(driver) == run_traffic(new_driver(folder, None))
    assert device.num_captures == 0


def test_a_layer_that_reads_a_value_back_cannot_be_captured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_random(QUICK[0], folder)
    driver = new_driver(folder, RecordedDevice())
    feed_forward = Layer.feed_forward

    def reading(self: Layer, stream: torch.Tensor, *operands: torch.Tensor) -> Any:
        stream.sum().item()
        return feed_forward(self, stream, *operands)

    monkeypatch.setattr(Layer, "feed_forward", reading)
    with pytest.raises(CaptureError, match="reads a value back"):
        run_traffic(driver)


def test_a_value_that_python_computed_while_capturing_stays(folder: Path) -> None:
    """A graph does not see what the host computes for a later step."""
    device, scale, x = RecordedDevice(), [1.0], torch.ones(2)
    graph, result = device.capture(lambda: x * scale[0])
    x.fill_(3)
    scale[0] = 5.0
    graph.replay()
    assert result.tolist() == [3.0, 3.0]


def test_padding_of_a_bucket_changes_no_logits(folder: Path) -> None:
    save_random(QUICK[0], folder)
    driver = new_driver(folder, RecordedDevice())
    steps = driver.runner._steps
    fill = steps._fill_padding

    def garbage(views: dict[str, np.ndarray]) -> None:
        fill(views)
        views["token_ids"][:], views["positions"][:] = 7, 3

    steps._fill_padding = garbage
    assert run_traffic(driver) == run_traffic(new_driver(folder, None))


def test_buffers_are_reused_only_after_their_copy(folder: Path) -> None:
    """Every reuse of a buffer follows a wait for the event behind its last copy."""
    save_random(QUICK[0], folder)
    driver = new_driver(folder, RecordedDevice())
    steps, order = driver.runner._steps, []
    fill = steps._fill
    for number, buffers in enumerate([next(steps._ring) for _ in range(3)]):
        wait = buffers.uploaded.wait
        buffers.uploaded.wait = lambda number=number, wait=wait: (order.append(("waited", number)), wait())
        buffers.number = number
    steps._fill = lambda bucket, inputs, buffers: (
        order.append(("filled", buffers.number)),
        fill(bucket, inputs, buffers),
    )[1]
    run_traffic(driver)
    filled: set[int] = set()
    for before, (kind, number) in zip([("", -1), *order], order, strict=False):
        if kind == "filled" and number in filled:
            assert before == ("waited", number)
        if kind == "filled":
            filled.add(number)
    assert len(filled) == 3


def test_limits_of_buckets_are_respected() -> None:
    from engine.step_buckets import Bucket, Buckets

    buckets = Buckets(512, 200, 16)
    for rows in (1, 3, 64, 65, 200):
        bucket = buckets.find(Bucket(rows, rows, rows, 0))
        assert bucket is not None
        assert bucket.num_rows >= rows
        assert bucket.num_ints <= buckets.largest()
    shape = Bucket(420, 201, 200, 15)
    bucket = buckets.find(shape)
    assert bucket is not None
    assert (bucket.num_tokens, bucket.num_rows) == (512, 224)
    assert buckets.find(replace(shape, num_tokens=5000)) is None
