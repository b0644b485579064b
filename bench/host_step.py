"""Measure the host's time per engine step without a device. Prints JSON.

    python -m bench.host_step

A steady decode batch over a runner that computes nothing. "plan" and "commit" are the scheduler's and the loop's own
work; "inputs" builds the index arrays; "send" encodes the step's message. Medians in microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import cast

import numpy as np

from engine.config import EngineConfig
from engine.input_builder import build_inputs
from engine.inputs import StepInputs, StepOutput
from engine.launched_step import FinishedOutput, LaunchedStep
from engine.loop import Engine, StepRunner
from engine.protocol.sampling import Sampling
from engine.ranks import wire
from engine.scheduling.sequence import SequenceRequest

BLOCK_SIZE = 16


class NullRunner:
    """Draw the same token for every row."""

    def __init__(self, num_blocks: int, max_model_len: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = BLOCK_SIZE
        self.max_model_len = max_model_len
        self.vocab_size = 32_000
        self.eos_token_ids: tuple[int, ...] = (2,)
        self.layout_tag = "null"
        self.can_sleep = False
        self.weight_bytes = self.kv_bytes = 1
        self.has_cheap_multi_token_rows = True
        self.can_run_ahead = False

    def launch(self, inputs: StepInputs) -> FinishedOutput:
        return FinishedOutput(StepOutput(np.full(inputs.sampling.num_rows, 7, dtype=np.int32)))


def engine_with_full_batch(num_rows: int, prompt_len: int, max_tokens: int) -> Engine:
    """Return an engine whose whole batch decodes, with rows at different offsets within their blocks."""
    total = prompt_len + BLOCK_SIZE + max_tokens
    runner = NullRunner(num_blocks=num_rows * (total // BLOCK_SIZE + 2), max_model_len=total)
    config = EngineConfig(
        model_dir=Path(), max_sequences=num_rows, max_step_tokens=max(512, 2 * num_rows), max_waiting=num_rows
    )
    engine = Engine(cast(StepRunner, runner), config)
    random = np.random.default_rng(0)
    for row in range(num_rows):
        prompt = random.integers(3, 30_000, prompt_len + row % BLOCK_SIZE).astype(np.int32)
        sampling = Sampling(max_tokens=max_tokens, temperature=0.7)
        engine.add(SequenceRequest(row, prompt, sampling, b"n" * 32, tenant=row % 10))
    while engine.scheduler.num_waiting or np.any(
        engine.table.length[engine.scheduler.running] - engine.table.num_computed[engine.scheduler.running] > 1
    ):
        engine.step()
    return engine


def measure(engine: Engine, num_steps: int) -> dict[str, float]:
    """Return the median microseconds of each part of a step."""
    parts: dict[str, list[float]] = {name: [] for name in ("plan", "inputs", "commit", "send")}
    for _ in range(num_steps):
        marks = [time.perf_counter()]
        scheduled = engine.scheduler.schedule()
        marks.append(time.perf_counter())
        step_inputs = build_inputs(scheduled, engine.table)
        marks.append(time.perf_counter())
        output = FinishedOutput(StepOutput(np.full(step_inputs.sampling.num_rows, 7, dtype=np.int32)))
        marks[-1], built = time.perf_counter(), marks[-1] - marks[-2]
        step = LaunchedStep.advance(scheduled, step_inputs, output, engine.scheduler)
        engine.device_time.charge(step, int(scheduled.num_tokens.sum()))
        report = engine.postprocessor.process(step, output.wait())
        marks.append(time.perf_counter())
        wire.encode_report(report, engine.status())
        marks.append(time.perf_counter())
        for name, took in zip(
            parts, (marks[1] - marks[0], built, marks[3] - marks[2], marks[4] - marks[3]), strict=True
        ):
            parts[name].append(took * 1e6)
    medians = {f"{name}_us": round(statistics.median(values), 1) for name, values in parts.items()}
    totals = [sum(values) for values in zip(*parts.values(), strict=True)]
    planned = [plan + commit for plan, commit in zip(parts["plan"], parts["commit"], strict=True)]
    return {
        **medians,
        "plan_and_commit_us": round(statistics.median(planned), 1),
        "total_us": round(statistics.median(totals), 1),
        "total_p99_us": round(statistics.quantiles(totals, n=100)[98], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--prompt", type=int, default=300)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    engine = engine_with_full_batch(arguments.rows, arguments.prompt, arguments.steps + 1000)
    print(json.dumps({"rows": arguments.rows, **measure(engine, arguments.steps)}))


if __name__ == "__main__":
    main()
