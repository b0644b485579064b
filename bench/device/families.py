"""Compare the device with the CPU for tiny random checkpoints of every family. Part `families` of `bench.device`.

Logits of a prompt in chunks, and greedy tokens of sequences that run together, by the engine as it runs on the device:
with graphs, one step ahead. In float32, where a difference shows a fault, and in bfloat16, which is recorded only.
Each family runs in a process of its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bench.device.figures import Sheet, WrongResult
from bench.device.isolated import run_each
from engine.config import EngineConfig
from engine.loop import Engine
from engine.protocol.sampling import Sampling
from engine.runner import Runner
from engine.scheduling.sequence import SequenceRequest
from tests.engine.made_checkpoints import KINDS, Pusher, save_random

DTYPES = ("float32", "bfloat16")
MAX_DIFFERENCE = 0.005  # largest allowed difference of float32 logits, relative to the largest logit
_NUM_SEQUENCES, _NUM_TOKENS = 6, 20
_PROCESSES = {"cuda": 8, "cpu": 2}
_LIMIT_S = 60.0


def rows() -> list[str]:
    return [f"{kind}, {dtype}" for kind in KINDS for dtype in DTYPES]


def run(sheet: Sheet, device: torch.device, *, is_tiny: bool) -> None:
    """Fill a sheet with the difference of logits, the share of equal greedy tokens, and how steps ran, by family.
    Raises WrongResult."""
    kinds = list(KINDS)[::12] if is_tiny else list(KINDS)
    items = [(kind, device.type) for kind in kinds]
    wrong, differences, equal = list[dict[str, Any]](), [0.0], [1.0]
    end = time.monotonic() + sheet.left_s - 1
    processes = _PROCESSES[device.type]
    for (kind, _), value, failure in run_each(compare, items, num_processes=processes, until=end, limit_s=_LIMIT_S):
        dtype: str = "all types" if failure else value[0]
        found: dict[str, Any] = {"failure": failure} if failure else value[1]
        sheet.add(f"{kind}, {dtype}", found)
        if failure and failure.startswith("not run"):
            continue
        difference = found.get("logits", float("inf"))
        if failure or not np.isfinite(difference) or (dtype == "float32" and difference > MAX_DIFFERENCE):
            wrong.append({"kernel": f"family {kind}", "shape": dtype, "error": failure.strip() or difference})
        elif dtype == "float32":
            differences.append(difference)
            equal.append(found["equal_tokens"])
    sheet.headline(
        f"{len(differences) - 1} families right, {len(wrong)} wrong; float32 logits differ by at most "
        f"{max(differences):.2g}, greedy tokens equal {min(equal):.3f}"
    )
    if wrong:
        raise WrongResult(wrong)


def compare(item: tuple[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield type and figures of a family."""
    kind, device = item
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        save_random(kind, Path(folder))
        for dtype in DTYPES:
            yield dtype, _compare(Path(folder), device, dtype)


def _compare(folder: Path, device: str, dtype: str) -> dict[str, Any]:
    prompt = np.random.default_rng(1).integers(0, 150, 30).tolist()
    runners = [_runner(folder, each, dtype) for each in ("cpu", device)]
    pushers, difference = [Pusher(runner) for runner in runners], 0.0
    for chunk in (prompt[:20], prompt[20:28], prompt[28:29], prompt[29:]):
        expected, logits = (pusher.push(chunk).cpu() for pusher in pushers)
        largest = float((logits - expected).abs().max() / expected.abs().max())
        difference = max(difference, largest) if np.isfinite(largest) else float("inf")
    expected_tokens, tokens = (_generate(runner, folder) for runner in runners)
    pairs = [(a, b) for key in expected_tokens for a, b in zip(expected_tokens[key], tokens[key], strict=True)]
    steps = runners[1]._steps
    return {
        "logits": difference,
        "equal_tokens": sum(a == b for a, b in pairs) / len(pairs),
        "steps": dict(steps.num_steps) if steps is not None else {},
    }


def _runner(folder: Path, device: str, dtype: str) -> Runner:
    return Runner(EngineConfig(model_dir=folder, device=device, dtype=dtype, num_blocks=64, max_sequences=8))


def _generate(runner: Runner, folder: Path) -> dict[int, list[int]]:
    config = EngineConfig(model_dir=folder, max_sequences=8, max_step_tokens=64, is_prefix_cache_enabled=False)
    engine, rng = Engine(runner, config, adapters=runner.adapters), np.random.default_rng(2)
    tokens: dict[int, list[int]] = {number: [] for number in range(_NUM_SEQUENCES)}
    for number in tokens:
        prompt = rng.integers(1, 150, int(rng.integers(3, 50))).astype(np.int32)
        sampling = Sampling(max_tokens=_NUM_TOKENS, temperature=0.0, ignore_eos=True)
        engine.add(SequenceRequest(number, prompt, sampling, b"bench", 0))
    while engine.has_work:
        report = engine.step()
        for sequence_id, token in zip(report.sequence_ids.tolist(), report.token_ids.tolist(), strict=True):
            tokens[sequence_id].append(token)
    return tokens
