"""Compare one model in bf16, int8 and int4 in one process, taking turns: speed, memory and size.

    python -m bench.formats [--threads 1] [--repeats 3] [--model m110] [--formats int8,int4] [--group-size 32]
        [--torch] [--keep FOLDER]

128 tokens in, 128 out, end tokens ignored. `dec1` is one stream, `agg16` sixteen concurrent streams including prefill,
`pre512` the prefill of 512 tokens. Figures are the best of the repeats; ratios are relative to bf16. `resident_mb` is
the memory that loading a format adds to a fresh process. `--torch` disables the compiled kernels; `--keep` stores the
models for further runs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import warnings
from pathlib import Path

import psutil
import torch

from bench.engine_cpu import find_model
from engine.config import EngineConfig
from engine.kernels.cpu import CpuKernels
from engine.kernels.native.chosen import find_native_kernels
from engine.processes.zygote import PASSIVE_THREADS
from engine.runner import Runner
from variants.comparison import tokens_per_s
from variants.recipe import make_recipe
from variants.variant import plan_variant, write_variant

SCENARIOS = {"dec1": (1, 128, 128), "agg16": (16, 128, 128), "pre512": (1, 512, 1)}


def main() -> None:
    arguments = parse_arguments()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        folders = make_folders(arguments, arguments.keep or Path(folder))
        rows = measure(folders, arguments)
        memory = {name: resident_mb(path, arguments.threads) for name, path in folders.items()}
    json.dump(
        {"threads": arguments.threads, "load": os.getloadavg()[0], "rows": rows, "resident_mb": memory}, sys.stdout
    )
    print()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default="m110")
    parser.add_argument("--formats", default="int8,int4")
    parser.add_argument("--group-size", type=int)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--keep", type=Path)
    return parser.parse_args()


def make_folders(arguments: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Create the model folder of each format, bf16 first."""
    is_there = (folder / arguments.model / "config.json").is_file()
    folders = {"bf16": folder / arguments.model if is_there else find_model(arguments.model, folder)}
    for name in arguments.formats.split(","):
        group_size = arguments.group_size if name == "int4" else None
        folders[name] = folder / name
        if folders[name].exists():
            continue
        folders[name].mkdir()
        write_variant(folders["bf16"], plan_variant(folders["bf16"], make_recipe(name, group_size)), folders[name])
    return folders


def measure(folders: dict[str, Path], arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Return tokens per second of each format in each scenario."""
    configs = {name: config_of(path, arguments.threads) for name, path in folders.items()}
    kernels = CpuKernels() if arguments.torch else find_native_kernels() or CpuKernels()
    runners = {name: Runner(config, kernels) for name, config in configs.items()}
    rows = []
    for scenario, (num_streams, num_in, num_out) in SCENARIOS.items():
        best = dict.fromkeys(runners, 0.0)
        for _ in range(arguments.repeats):
            for name, runner in runners.items():
                speed = tokens_per_s(runner, configs[name], num_streams, num_in, num_out)
                best[name] = max(best[name], speed * (num_in if num_out == 1 else 1))
        row: dict[str, object] = {"model": arguments.model, "scenario": scenario}
        row |= {name: round(speed, 1) for name, speed in best.items()}
        row |= {f"{name}_ratio": round(speed / best["bf16"], 2) for name, speed in best.items() if name != "bf16"}
        print(json.dumps(row), file=sys.stderr)
        rows.append(row)
    return rows


def resident_mb(folder: Path, num_threads: int) -> float:
    """Return the memory that a fresh process gains by loading the model and running one step, in MB."""
    os.environ.update(PASSIVE_THREADS)  # as in ranks
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return round(pool.apply(_load_and_weigh, (folder, num_threads)), 1)


def _load_and_weigh(folder: Path, num_threads: int) -> float:
    before = psutil.Process().memory_info().rss
    config = config_of(folder, num_threads)
    runner = Runner(config)
    tokens_per_s(runner, config, 1, 16, 2)
    return float(psutil.Process().memory_info().rss - before) / 1e6


def config_of(folder: Path, num_threads: int) -> EngineConfig:
    return EngineConfig(model_dir=folder, dtype="bfloat16", num_threads=num_threads, is_prefix_cache_enabled=False)


if __name__ == "__main__":
    main()
