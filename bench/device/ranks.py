"""Run a whole model with one and two ranks on GPUs: the tokens must be equal, and speed is measured.

    python -m bench.device.ranks [--ranks 1,2] [--shape 8B] [--streams 1,16,64] [--out FILE]
    python -m bench.device.ranks --device cpu --shape tiny --streams 1,4 [--tokens 32]     (here, through gloo)

Each number of ranks is a group in its own process, loaded as by a node (`engine.ranks.group`). First the built-in model
in float32, whose greedy tokens must equal those of one rank on the CPU; then random bfloat16 weights, timed: 128 prompt
tokens per stream and as many generated ones (`--tokens`), the last of three runs. Rank counts without enough devices
are skipped and named. Needs numpy, msgspec, llguidance and safetensors besides torch. Exits with status 1 if tokens
differ. Not yet run on GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.device.random_model import SHAPES, write_random

SPARK = Path(__file__).parents[2] / "catalog/builtin/spark"
NUM_PARITY = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--shape", default="8B", choices=tuple(SHAPES))
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1, help="of all ranks together, on the CPU")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--group", help=argparse.SUPPRESS)  # this process leads a group
    options = parser.parse_args()
    if options.group:
        json.dump(lead(json.loads(options.group)), sys.stdout)
        sys.stdout.flush()
        os._exit(0)  # required after using a process group: see engine.kernels.collectives
    found = compare(options)
    text = json.dumps(found, indent=1) + "\n"
    if options.out:
        options.out.write_text(text)
    sys.stdout.write(text)
    sys.exit(not found["is_equal"])


def compare(options: argparse.Namespace) -> dict[str, Any]:
    num_devices = torch.cuda.device_count() if options.device.startswith("cuda") else sys.maxsize
    rank_counts = [int(each) for each in options.ranks.split(",")]
    skipped = {n: f"{num_devices} devices found" for n in rank_counts if n > num_devices}
    parity = {"model_dir": str(SPARK), "dtype": "float32", "streams": [3], "tokens": NUM_PARITY, "threads": 1}
    expected = group(parity | {"device": "cpu", "ranks": 1})["first"]
    result: dict[str, Any] = {"torch": torch.__version__, "skipped": skipped, "is_equal": True, "by_ranks": {}}
    with tempfile.TemporaryDirectory() as folder:
        write_random(Path(folder), options.shape, torch.device("cpu"))
        timed = {"model_dir": folder, "dtype": "bfloat16", "tokens": options.tokens, "threads": options.threads,
                 "streams": [int(each) for each in options.streams.split(",")]}  # fmt: skip
        for ranks in rank_counts:
            if ranks in skipped:
                continue
            where = {"device": options.device, "ranks": ranks}
            is_equal = group(parity | where)["first"] == expected
            result["is_equal"] &= is_equal
            found = group(timed | where)
            result["by_ranks"][ranks] = {"is_equal": is_equal, "load_s": found["load_s"], "tok_s": found["tok_s"]}
    return result


def group(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the output of a group of ranks, led by a process that has not used a device before."""
    command = [sys.executable, "-m", "bench.device.ranks", "--group", json.dumps(settings)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def lead(settings: dict[str, Any]) -> dict[str, Any]:
    from engine.config import EngineConfig
    from engine.loop import Engine
    from engine.ranks.group import load

    most = max(settings["streams"])
    config = EngineConfig(
        Path(settings["model_dir"]), dtype=settings["dtype"], device=settings["device"],
        num_blocks=most * (-(-(128 + settings["tokens"]) // 16) + 1), max_sequences=most,
        num_threads=settings["threads"], tensor_parallel=settings["ranks"], is_prefix_cache_enabled=False,
    )  # fmt: skip
    hearth_tokens_per_s, _theirs = socket.socketpair()
    started = time.perf_counter()
    runner, _ = load(config, hearth_tokens_per_s)
    load_s = round(time.perf_counter() - started, 2)
    engine, next_id = Engine(runner, config), 1
    tok_s: dict[int, float] = {}
    tokens: dict[int, list[int]] = {}
    for streams in settings["streams"]:
        for _ in range(3):
            seconds, tokens = run(engine, streams, settings["tokens"], runner.vocab_size, first_id=next_id)
            next_id += streams
        tok_s[streams] = round(streams * settings["tokens"] / seconds, 1)
    return {"load_s": load_s, "tok_s": tok_s, "first": [tokens[each] for each in sorted(tokens)]}


def run(engine: Any, streams: int, num_out: int, vocab_size: int, first_id: int) -> tuple[float, dict[int, list[int]]]:
    """Return the seconds from the first step to the last token, and the tokens of each stream."""
    from engine.protocol.sampling import Sampling
    from engine.scheduling.sequence import SequenceRequest

    prompts = np.random.default_rng(0).integers(3, vocab_size, (streams, 128)).astype(np.int32)
    sampling = Sampling(max_tokens=num_out, temperature=0.0, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.add(SequenceRequest(first_id + number, prompt, sampling, b"bench", 0))
    tokens: dict[int, list[int]] = {first_id + number: [] for number in range(streams)}
    started = time.perf_counter()
    while engine.has_work:
        report = engine.step()
        for sequence_id, token in zip(report.sequence_ids.tolist(), report.token_ids.tolist(), strict=True):
            tokens[sequence_id].append(token)
    return time.perf_counter() - started, tokens


if __name__ == "__main__":
    main()
