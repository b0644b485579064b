"""Ephemeral sequences leave nothing in the KV pool, in copies of it, or in the prefix cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.kernels.cpu import CpuKernels
from engine.kernels.native import build, library
from engine.kernels.native.operators import NativeKernels
from engine.kernels.reference import Kernels
from engine.runner import Runner
from tests.engine.driver import OTHER_NAMESPACE, Driver
from tests.engine.made_checkpoints import runner_of, save_random

KIND = "llama 3 with scaled positions"
KERNELS = ["compiled", "torch"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_random(KIND, folder)
    return folder


def new_runner(folder: Path, kernels: str, **settings: object) -> Runner:
    if kernels == "compiled" and build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    found: Kernels = CpuKernels() if kernels == "torch" else NativeKernels(library.load(build.build()))
    runner = runner_of(folder, kernels=found, **settings)
    with torch.inference_mode():
        runner._pool.data.zero_()
    return runner


def left_in(runner: Runner) -> set[int]:
    """Return the blocks that contain any nonzero value."""
    blocks = runner._pool.data.unflatten(1, (runner.num_blocks, runner.block_size))
    return set(torch.nonzero(blocks.abs().amax((0, 2, 3))).flatten().tolist())


def prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, 199, int(rng.integers(1, 50))).tolist() for _ in range(count)]


@pytest.mark.parametrize("kernels", KERNELS)
def test_preempted_and_aborted_ephemeral_sequences_leave_no_kv(folder: Path, kernels: str) -> None:
    driver = Driver(new_runner(folder, kernels, num_blocks=20))
    ids = [driver.add(each, max_tokens=30, ignore_eos=True, is_ephemeral=True) for each in prompts(10)]
    driver.add(prompts(10)[-1], max_tokens=5, ignore_eos=True, is_ephemeral=True)
    for _ in range(6):
        driver.step()
    driver.abort(ids[0])
    driver.run()
    assert driver.engine.scheduler.num_preemptions > 0
    assert driver.engine.blocks.num_cached == 0
    assert left_in(driver.runner) == set()  # type: ignore[arg-type]
    assert not driver.engine.table.token_ids.any()


@pytest.mark.parametrize("kernels", KERNELS)
def test_ephemeral_kv_is_wiped_at_once_without_changing_other_tokens(folder: Path, kernels: str) -> None:
    def run(is_ephemeral: bool) -> tuple[Driver, Runner]:
        runner = new_runner(folder, kernels, num_blocks=64)
        driver = Driver(runner)
        for index, prompt in enumerate(prompts(3)):
            driver.add(prompt, max_tokens=40, temperature=0.7, seed=index, ignore_eos=True)
        for prompt in prompts(5):
            sampling = {"max_tokens": 6, "temperature": 0.7, "seed": 5}
            driver.add(
                prompt, namespace=OTHER_NAMESPACE, ignore_eos=True, is_ephemeral=is_ephemeral, **sampling
            )  # fmt: skip
        while len(driver.finishes) < 5:
            driver.step()
        if is_ephemeral:
            table = driver.engine.table
            held = {
                block
                for slot in driver.engine.scheduler.running.tolist()
                for block in table.block_table[slot, : table.num_blocks[slot]].tolist()
            }
            assert left_in(runner) <= held
        driver.run()
        return driver, runner

    (wiped, runner), (unwiped, _) = run(True), run(False)
    assert wiped.tokens == unwiped.tokens
    assert wiped.engine.blocks.num_cached < unwiped.engine.blocks.num_cached
    assert len(left_in(runner)) > 0  # the others' stay, as they should


def test_only_non_ephemeral_prompts_are_cached(folder: Path) -> None:
    """The same prompt twice is cached, unless the first request was ephemeral."""
    for is_ephemeral, num_cached in ((False, 32), (True, 0)):
        driver = Driver(new_runner(folder, "torch"))
        for _ in range(2):
            driver.add([7] * 40, max_tokens=2, ignore_eos=True, is_ephemeral=is_ephemeral)
            driver.run()
        assert driver.num_cached[2] == num_cached
