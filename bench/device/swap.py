"""Time to put a model to sleep and to wake it, and from a wake to the first token. Row `swap` of part `start`."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from bench.device.figures import Sheet, WrongResult
from engine.config import EngineConfig
from engine.loop import Engine
from engine.protocol.sampling import Sampling
from engine.runner import Runner
from engine.scheduling.sequence import SequenceRequest
from engine.serving.snapshots import Snapshots

NUM_SWAPS = 5
LEAST_S = 30.0
_KV_BYTES = 4 << 30
_PROMPT = np.arange(5, 37, dtype=np.int32)


def measure(sheet: Sheet, device: torch.device, folder: Path, *, is_tiny: bool) -> None:
    """Fill the row. Raises WrongResult if a token after a wake is another one than before."""
    config = EngineConfig(
        model_dir=folder, device=device.type, dtype="bfloat16", kv_memory_bytes=64 << 20 if is_tiny else _KV_BYTES,
        max_model_len=2048, max_sequences=8, sleeps=True,
    )  # fmt: skip
    runner = Runner(config)
    if not runner.can_sleep:
        sheet.add("swap", "not available: see the log of the part")
        return
    runner.warm_up()
    engine, snapshots = Engine(runner, config), Snapshots()
    path = snapshots.open("bench", None)
    expected, _ = _first_token(engine, 0)
    rows: list[dict[str, float]] = []
    for number in range(NUM_SWAPS):
        started_s = time.perf_counter()
        asleep = engine.sleep(path)
        sleep_s = time.perf_counter() - started_s
        started_s = time.perf_counter()
        engine.wake()
        wake_s = time.perf_counter() - started_s
        token, token_s = _first_token(engine, number + 1)
        if token != expected:
            raise WrongResult([{"kernel": "swap", "shape": "", "error": f"token {token} is not {expected}"}])
        rows.append({"sleep_s": round(sleep_s, 4), "wake_s": round(wake_s, 4), "first_token_s": round(token_s, 4)})
    sizes = {"weight_bytes": runner.weight_bytes, "kv_bytes": runner.kv_bytes}
    sizes |= {"host_bytes": asleep.host_bytes, "device_bytes": asleep.device_bytes}
    sheet.add("swap", sizes | {"swaps": rows})
    best = min(row["wake_s"] + row["first_token_s"] for row in rows)
    sheet.headline(f"swap in of {runner.weight_bytes / 1e9:.1f} GB to the first token: {best:.2f} s")


def _first_token(engine: Engine, sequence_id: int) -> tuple[int, float]:
    """Return the first greedy token of a prompt that no cache has, and the seconds until it is known."""
    started_s = time.perf_counter()
    sampling = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)
    engine.add(SequenceRequest(sequence_id, _PROMPT, sampling, b"%032d" % sequence_id, 1))
    tokens: list[int] = []
    while engine.has_work:
        report = engine.step()
        tokens += [token for token in report.token_ids.tolist() if token >= 0]
    return tokens[0], time.perf_counter() - started_s
