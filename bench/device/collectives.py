"""Check and time the collectives of a tensor-parallel group.

    python -m bench.device.collectives [--ranks 2] [--rows 1,16,200,512] [--width 4096] [--repeats 50]
    python -m bench.device.collectives --device cpu --repeats 5        (checks the script itself through gloo)

On GPUs, each rank takes one and uses NCCL; `--ranks 1` is a group of one. Every rank reduces and gathers numbers that
identify it. Times are of one all_reduce of [rows, width] in bfloat16 in a sequence of them, from the device's clock on
CUDA. Prints JSON; exits with status 1 if a result is wrong. Not yet run on GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

from engine.devices.assignment import device_of
from engine.kernels.collectives import Group, Meeting, backend_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", default="1,16,200,512")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=50)
    options = parser.parse_args()
    try:
        device_of(options.device, 0, options.ranks)
    except ValueError as refusal:
        raise SystemExit(f"skipped: {refusal}") from None
    meeting, context = Meeting(0, options.ranks), get_context("spawn")
    others = []
    for rank in range(1, options.ranks):
        hearth_tokens_per_s, transformers_tokens_per_s = context.Pipe()
        process = context.Process(
            target=follow, args=(rank, meeting.port, options, transformers_tokens_per_s), daemon=True
        )
        process.start()
        others.append((process, hearth_tokens_per_s))
    result = run(0, meeting, options)
    result["is_right"] &= all(hearth_tokens_per_s.recv() for _, hearth_tokens_per_s in others)
    for process, _ in others:
        process.join(30)
    json.dump({"ranks": options.ranks, "torch": torch.__version__, **result}, sys.stdout)
    print(flush=True)
    os._exit(not result["is_right"])  # required after using a process group: see engine.kernels.collectives


def follow(rank: int, port: int, options: argparse.Namespace, channel: Connection) -> None:
    channel.send(run(rank, Meeting(rank, options.ranks, port), options)["is_right"])
    os._exit(0)


def run(rank: int, meeting: Meeting, options: argparse.Namespace) -> dict[str, Any]:
    """Run one rank's part."""
    device = device_of(options.device, rank, options.ranks)
    group = meeting.join(device)
    times_us = {}
    for rows in map(int, options.rows.split(",")):
        x = torch.zeros(rows, options.width, dtype=torch.bfloat16, device=device)
        times_us[rows] = round(_median_us(partial(group.all_reduce, x), device, options.repeats), 1)
    return {
        "backend": backend_of(device),
        "is_right": _is_right(group, rank, options.ranks, device),
        "total_us": times_us,
    }


def _is_right(group: Group, rank: int, size: int, device: torch.device) -> bool:
    """Return True if the collectives are correct. Each rank contributes its number plus one in bfloat16, which
    represents such sums exactly."""
    mine = torch.full((3, 5), rank + 1.0, dtype=torch.bfloat16, device=device)
    is_summed = bool((group.all_reduce(mine.clone()) == size * (size + 1) / 2).all())
    parts = [part.float().mean().item() for part in group.all_gather(mine.float())]
    return is_summed and parts == ([float(each + 1) for each in range(size)] if rank == 0 else [])


def _median_us(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    samples = []
    for _ in range(3):
        call()
    for _ in range(repeats):
        if device.type == "cuda":
            begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record()
            call()
            done.record()
            done.synchronize()
            samples.append(begun.elapsed_time(done) * 1e3)
        else:
            started = time.perf_counter()
            call()
            samples.append((time.perf_counter() - started) * 1e6)
    return statistics.median(samples)


if __name__ == "__main__":
    main()
