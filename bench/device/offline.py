"""The engine in this process under a closed loop of 200 sequences. Part `offline` of `bench.device`.

A random Llama of the shape of Llama 3.1 8B, lengths of `lengths.json`, end tokens ignored.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.device import closed_loop
from bench.device.figures import Sheet
from engine.config import EngineConfig
from engine.runner import Runner

CASES: dict[str, dict[str, Any]] = {
    "temperature 0.6, top_p 0.9": {"temperature": 0.6, "top_p": 0.9},
    "greedy": {"temperature": 0.0},
}
IN_FLIGHT = 200
_RESERVED_BYTES = 24 << 30  # GPU memory for 16 GB of weights, a step and graphs
_WARM_UP_S = 6.0  # duration of the run that captures graphs of all buckets


@dataclass(frozen=True)
class Options:
    """Requests arrive for `seconds` in each of `repeats` runs of each case and budget, and have `drain_s` to end.
    `prefix` begins the names of figures."""

    seconds: float = 25.0
    drain_s: float = 60.0
    budgets: Sequence[int] = (512, 1024)
    repeats: int = 2
    kv_dtype: str = "auto"
    prefix: str = ""


def rows(options: Options = Options()) -> list[str]:
    return [
        f"{name}, budget {budget}, run {repeat + 1}"
        for budget in options.budgets
        for name in CASES
        for repeat in range(options.repeats)
    ]


def load(
    folder: Path, device: torch.device, in_flight: int, max_step_tokens: int, kv_dtype: str = "auto"
) -> tuple[Runner, float]:
    """Return the runner, and the seconds that loading and capturing took."""
    started = time.perf_counter()
    is_gpu = device.type == "cuda"
    kv_bytes = (torch.cuda.mem_get_info()[0] - _RESERVED_BYTES) if is_gpu else 64 << 20
    config = EngineConfig(
        folder, dtype="bfloat16", kv_dtype=kv_dtype, device=device.type, kv_memory_bytes=kv_bytes,
        max_sequences=in_flight, max_step_tokens=max_step_tokens, max_model_len=4096, is_prefix_cache_enabled=False,
        num_threads=2,
    )  # fmt: skip
    runner = Runner(config)
    runner.warm_up()
    return runner, time.perf_counter() - started


def run(sheet: Sheet, device: torch.device, folder: Path, options: Options, *, is_tiny: bool) -> None:
    """Fill a sheet. A case that no longer fits into the part's time is not started."""
    for budget in options.budgets:
        in_flight = 8 if is_tiny else IN_FLIGHT
        runner, load_s = load(folder, device, in_flight, budget, options.kv_dtype)
        sheet.add(
            f"{options.prefix}load, budget {budget}", {"seconds": round(load_s, 2), "num_blocks": runner.num_blocks}
        )
        for case, parameters in CASES.items():
            name = f"{options.prefix}{case}"
            shape: dict[str, Any] = {"scale": 0.05, "num_requests": 24} if is_tiny else {}
            warm = closed_loop.Load(
                parameters, in_flight, budget, min(_WARM_UP_S, options.seconds), drain_s=0.0, **shape
            )
            closed_loop.run(runner, warm)
            for repeat in range(options.repeats):
                if sheet.left_s < options.seconds + 2:
                    sheet.headline(f"{name}, budget {budget}: not run, out of time")
                    continue
                drain_s = min(options.drain_s, sheet.left_s - options.seconds - 2)
                timed = closed_loop.Load(parameters, in_flight, budget, options.seconds, drain_s, **shape)
                found = closed_loop.run(runner, timed)
                sheet.add(f"{name}, budget {budget}, run {repeat + 1}", found)
                rates = found["steady"] or found["whole_run"] or {}
                sheet.headline(f"{name}, budget {budget}: {rates.get('total_tokens_s')} tokens/s")
        del runner
        gc.collect()  # the loops have left reference cycles that hold the model
        if device.type == "cuda":
            torch.cuda.empty_cache()
