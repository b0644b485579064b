"""A model with an adapter equals the model with the adapter merged into its weights, for every architecture,
module and batch composition.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from engine.adapters.local_adapter import LocalAdapter
from engine.kernels.cpu import CpuKernels
from engine.kernels.reference import Kernels
from engine.report import RUNNING
from engine.runner import Runner
from tests.engine.adapters.made import has_references, named, random_matrices, save_adapter, save_merged
from tests.engine.driver import Driver
from tests.engine.made_checkpoints import KINDS, Pusher, runner_of, save_random

PROMPT = np.random.default_rng(5).integers(0, 199, 45).tolist()
# Layouts of the loader: parts fused by us, fused in the file, rearranged heads, latent attention, experts beside.
FAMILIES = ["wide heads", "phi3", "glm4", "gpt-oss", "deepseek v3"]
# Those of this machine, compiled where there is a compiler, and torch's operators.
BY_KERNELS = pytest.mark.parametrize("kernels", [None, CpuKernels()], ids=["own", "torch"])


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def take(runner: Runner, adapter: LocalAdapter) -> int:
    """Load and acquire an adapter."""
    assert runner.adapters.load(adapter).result(20).code == RUNNING
    return runner.adapters.acquire(adapter.digest)


def logits_of(runner: Runner, handle: int, chunk: int) -> torch.Tensor:
    """Return the logits after each chunk of the prompt, [chunks, V]."""
    pusher = Pusher(runner, seed=chunk, sequence_id=chunk + 1 + 1000 * handle)
    pusher.table.adapter[0], pusher.table.has_adapters = handle, handle > 0
    return torch.stack([pusher.push(PROMPT[first : first + chunk]) for first in range(0, len(PROMPT), chunk)])


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in FAMILIES else pytest.mark.full) for kind in KINDS]
)
def test_adapter_logits_equal_those_of_merged_weights(kind: str, tmp_path: Path) -> None:
    save_random(kind, tmp_path / "base")
    runner = runner_of(tmp_path / "base")
    matrices = random_matrices(runner.adapters.sites)
    adapter = save_adapter(tmp_path / "adapter", matrices)
    merged = runner_of(save_merged(tmp_path / "base", tmp_path / "merged", matrices, scale=2.0))
    handle = take(runner, adapter)
    for chunk in (1, 5, 45):
        expected = logits_of(merged, 0, chunk)
        torch.testing.assert_close(logits_of(runner, handle, chunk), expected, atol=2e-4, rtol=1e-4)
        assert (logits_of(runner, 0, chunk) - expected).abs().max() > 0.05, "the adapter changes nothing"


@BY_KERNELS
@pytest.mark.parametrize(
    ("targets", "changes", "scale"),
    [
        (["q_proj", "v_proj"], {"lora_alpha": 6}, 1.5),
        (["k_proj", "down_proj"], {"lora_alpha": 4, "use_rslora": True}, 2.0),
        (["up_proj"], {"lora_alpha": 1, "target_modules": "all-linear"}, 0.25),
    ],
)
def test_any_choice_of_modules_and_any_scale(
    targets: list[str], changes: dict, scale: float, kernels: Kernels | None, tmp_path: Path
) -> None:
    save_random("wide heads", tmp_path / "base")
    runner = runner_of(tmp_path / "base", kernels)
    matrices = random_matrices(named(runner.adapters.sites, targets))
    adapter = save_adapter(tmp_path / "adapter", matrices, **changes)
    merged = runner_of(save_merged(tmp_path / "base", tmp_path / "merged", matrices, scale))
    handle = take(runner, adapter)
    for chunk in (1, 45):
        torch.testing.assert_close(logits_of(runner, handle, chunk), logits_of(merged, 0, chunk), atol=2e-4, rtol=1e-4)


@BY_KERNELS
def test_mixed_adapter_batch_generates_the_same_tokens_as_single_sequences(
    kernels: Kernels | None, tmp_path: Path
) -> None:
    """Ranks and modules differ, so that several adapter shapes meet in one step; prompts of all lengths mix prefill
    and decode."""
    save_random("wide heads", tmp_path / "base")
    sites = runner_of(tmp_path / "base").adapters.sites
    adapters: list[LocalAdapter | None] = [None]
    for seed, (rank, targets) in enumerate([(4, ["q_proj", "v_proj"]), (4, ["q_proj", "v_proj"]), (11, ["gate_proj"]),
                                            (4, ["k_proj", "o_proj", "down_proj"])]):  # fmt: skip
        matrices = random_matrices(named(sites, targets), rank, seed, size=0.8)
        adapters.append(save_adapter(tmp_path / f"adapter{seed}", matrices))
    prompts = [PROMPT[number:] for number in range(10)]

    def run(numbers: list[int], max_step_tokens: int) -> list[list[int]]:
        driver = Driver(runner_of(tmp_path / "base", kernels, num_blocks=128), max_step_tokens=max_step_tokens)
        ids = [
            driver.add(prompts[number], adapter=adapters[number % 5], max_tokens=12, temperature=0.0)
            for number in numbers
        ]
        driver.run()
        assert set(driver.finishes.values()) == {"length"}
        assert not has_references(driver.runner.adapters)
        return [driver.tokens[each] for each in ids]

    alone = [run([number], 64)[0] for number in range(5)]
    assert run(list(range(5)), 17) == alone
    assert run(list(range(10)), 64)[:5] == alone
    assert run([0], 64) == alone[:1], "as without them"
    assert len({tuple(each[:4]) for each in alone}) == 5, "the adapters change nothing"
