"""Measure the cost of LoRA adapters on this CPU: the same engine with and without them, taking turns.

    python -m bench.lora [--model m110] [--streams 16] [--adapters 32] [--rank 16] [--targets q_proj,v_proj]

128 tokens in, 128 out, end tokens ignored, no prefix cache. Every stream of a batch has a different adapter; all
adapters are resident and each repeat uses others. `plain` is a batch without adapters, `one` all streams through one
adapter. Costs are relative to `plain`, each step the best of the repeats. Absolute values are meaningful only on an
idle machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from bench.engine_cpu import find_model
from engine.adapters.local_adapter import LocalAdapter
from engine.config import EngineConfig
from engine.loop import Engine
from engine.protocol.sampling import Sampling
from engine.runner import Runner
from engine.scheduling.sequence import SequenceRequest
from tests.engine.adapters.made import named, random_matrices, save_adapter

NUM_IN, NUM_OUT = 128, 128
ALL = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"


class Bench:
    """One runner and its adapters."""

    def __init__(self, model_dir: Path, num_threads: int, num_streams: int) -> None:
        self._config = EngineConfig(
            model_dir=model_dir,
            num_threads=num_threads,
            is_prefix_cache_enabled=False,
            adapter_memory_bytes=2 << 30,
            kv_memory_bytes=512 << 20,
        )
        self.runner = Runner(self._config)
        self._prompts = np.random.default_rng(0).integers(3, self.runner.vocab_size, (num_streams, NUM_IN))
        self._next_id = 1

    def run(self, adapters: list[LocalAdapter | None]) -> tuple[list[float], list[float]]:
        """Return the seconds of each step, and of those in which every stream decodes."""
        engine = Engine(self.runner, self._config, adapters=self.runner.adapters)
        sampling = Sampling(max_tokens=NUM_OUT, temperature=0.0, ignore_eos=True)
        for prompt, adapter in zip(self._prompts, adapters, strict=True):
            request = SequenceRequest(self._next_id, prompt.astype(np.int32), sampling, b"bench", 0, adapter=adapter)
            engine.add(request)
            self._next_id += 1
        steps_s, decode_s, num_tokens = [], [], 0
        while engine.has_work:
            begun = time.perf_counter()
            num_entries = engine.step().num_entries
            num_tokens += num_entries
            steps_s.append(time.perf_counter() - begun)
            if num_entries == len(adapters):
                decode_s.append(steps_s[-1])
        assert num_tokens == len(adapters) * NUM_OUT
        return steps_s, decode_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="m110")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--targets", default="q_proj,v_proj", help=f"all is {ALL}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    targets = (ALL if options.targets == "all" else options.targets).split(",")
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Bench(find_model(options.model, folder), options.threads, options.streams)
        sites = named(bench.runner.adapters.sites, targets)
        adapters = [
            save_adapter(folder / f"adapter{seed}", random_matrices(sites, options.rank, seed), torch.bfloat16)
            for seed in range(options.adapters)
        ]
        for first in range(0, len(adapters), options.streams):
            part = (adapters[first:] + adapters)[: options.streams]
            bench.run([*part])  # loads them
        report(bench, adapters, options)


def report(bench: Bench, adapters: list[LocalAdapter], options: argparse.Namespace) -> None:
    random = np.random.default_rng(0)
    best: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(options.repeats):
        drawn = random.permutation(len(adapters))[: options.streams]
        batches: dict[str, list[LocalAdapter | None]] = {
            "plain": [None] * options.streams,
            "adapters": [adapters[int(index)] for index in np.resize(drawn, options.streams)],
            "one": [adapters[0]] * options.streams,
        }
        for kind, batch in batches.items():
            steps_s, decode_s = bench.run(batch)
            known = best.get(kind, (steps_s, decode_s))
            best[kind] = ([*map(min, known[0], steps_s)], [*map(min, known[1], decode_s)])
            print(f"{kind}: {sum(steps_s):.2f} s, decoding {sum(decode_s):.2f} s", file=sys.stderr)
    seconds = {kind: (sum(steps_s), sum(decode_s)) for kind, (steps_s, decode_s) in best.items()}
    (plain_s, plain_decode_s), num_tokens = seconds["plain"], options.streams * NUM_OUT
    row = {
        "model": options.model, "dtype": str(bench.runner.dtype).removeprefix("torch."), "threads": options.threads,
        "streams": options.streams, "adapters": options.adapters, "rank": options.rank, "targets": options.targets,
        "resident_mb": round(bench.runner.adapters.used_bytes / 1e6, 1),
        "plain_tokens_per_s": round(num_tokens / plain_s, 1),
    }  # fmt: skip
    for kind in ("adapters", "one"):
        row[f"{kind}_cost_percent"] = round(100 * (seconds[kind][0] / plain_s - 1), 1)
        row[f"{kind}_decode_cost_percent"] = round(100 * (seconds[kind][1] / plain_decode_s - 1), 1)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
