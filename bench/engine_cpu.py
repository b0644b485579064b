"""Compare the engine's speed on this CPU with other engines, taking turns.

    python -m bench.engine_cpu [--threads 1] [--repeats 3] [--models spark,stories260K,m15] [--temperature 0]
                               [--peers PYTHON] [--vllm PYTHON] [--only NAMES]

128 tokens in, 128 out, end tokens ignored. `dec1` is one stream; `agg16` is sixteen concurrent streams including
prefill; `pre512` is tokens per second of a 512-token prompt until its first token; `warm2048` is the time to first
token of a 2,048-token prompt whose prefix is cached, relative to a cold one. `hearth` is the whole Engine (scheduler,
forward pass, sampler, commit), without prefix cache except for `warm2048`; `hearth_torch` is the same without compiled
kernels; `transformers` is `generate` with its default cache. `--peers` is the Python interpreter of an environment with
`bench/peers/requirements.txt`, `--vllm` that of one with `bench/peers/vllm.txt`: those engines run greedily in their
own processes with the same weights and prompts. Figures are the best of the repeats. Absolute values are meaningful
only on an idle machine, ratios nearly always. `same_first` counts the streams of `agg16` whose first
token equals that of Hearth.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.config import EngineConfig
from engine.kernels.cpu import CpuKernels
from engine.kernels.native.operators import find_native_kernels
from engine.loop import Engine
from engine.protocol.sampling import Sampling
from engine.runner import Runner
from engine.scheduling.sequence import SequenceRequest


@dataclass(frozen=True)
class Scenario:
    num_streams: int
    num_in: int
    num_out: int

    @property
    def num_counted(self) -> int:
        """Number of tokens that the speed counts: generated tokens, or prompt tokens if only one token is generated."""
        return self.num_streams * (self.num_out if self.num_out > 1 else self.num_in)


SCENARIOS = {"dec1": Scenario(1, 128, 128), "agg16": Scenario(16, 128, 128), "pre512": Scenario(1, 512, 1)}
NUM_WARM = 2048
SPARK = Path("catalog/builtin/spark")
PEERS = Path(__file__).parent / "peers"
PEER_FORMATS = {"llama_cpp": ("bf16", "q8_0"), "openvino": ("f32", "int8"), "vllm": ("bf16",)}
RANDOM_SHAPES: dict[str, dict[str, Any]] = {
    "spark": {
        "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "intermediate_size": 688, "vocab_size": 4096, "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
    "m15": {
        "hidden_size": 288, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 6,
        "head_dim": 48, "intermediate_size": 768, "vocab_size": 32000, "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    "m110": {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4,
        "head_dim": 64, "intermediate_size": 2048, "vocab_size": 32000, "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
# Runs a scenario and returns seconds and the first token of each stream.
Contender = Callable[[Scenario], tuple[float, list[int]]]


def main() -> None:
    arguments = parse_arguments()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models.split(","):
            model_dir = find_model(name, Path(folder))
            results += compare(name, model_dir, arguments)
    said = {"threads": arguments.threads, "temperature": arguments.temperature, "load_1m": os.getloadavg()[0]}
    json.dump({**said, "results": results}, sys.stdout)
    print()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", default="spark,stories260K,m15")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--peers", help="Python of the peers' environment")
    parser.add_argument("--vllm", help="Python of vLLM's environment")
    parser.add_argument("--only", help="comma-separated contenders, including hearth; default: all")
    return parser.parse_args()


def find_model(name: str, folder: Path) -> Path:
    """Return the folder of real weights if they exist, otherwise of random bfloat16 weights of that shape."""
    if name == "stories260K":
        return Path(os.environ.get("HEARTH_TEST_DATA", "../shared/data")) / "models" / name
    if name == "spark" and (SPARK / "model.safetensors").exists():
        return SPARK
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model_dir = folder / name
    config = LlamaConfig(**RANDOM_SHAPES[name], bos_token_id=None, eos_token_id=None)
    LlamaForCausalLM(config).bfloat16().save_pretrained(model_dir)
    return model_dir


def compare(name: str, model_dir: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return tokens per second of each contender in each scenario, and our ratio to the others."""
    with ExitStack() as stack:
        contenders, versions = make_contenders(model_dir, arguments, stack)
        results = [measure(name, scenario, contenders, arguments.repeats) for scenario in SCENARIOS]
    longest = json.loads((model_dir / "config.json").read_text())["max_position_embeddings"]
    if longest > NUM_WARM:
        results.append(measure_warm(name, model_dir, arguments))
    if versions:
        results.append({"model": name, "versions": versions})
    return results


def make_contenders(
    model_dir: Path, arguments: argparse.Namespace, stack: ExitStack
) -> tuple[dict[str, Contender], dict[str, str]]:
    """Return all contenders, Hearth first, and the versions of the peers."""
    only = arguments.only.split(",") if arguments.only else None
    threads, temperature = arguments.threads, arguments.temperature
    made: dict[str, Callable[[], Contender]] = {
        "hearth": lambda: hearth(model_dir, threads, temperature),
        "transformers_bf16": lambda: transformers(model_dir, torch.bfloat16, temperature),
        "transformers_f32": lambda: transformers(model_dir, torch.float32, temperature),
    }
    if find_native_kernels() is not None:
        made["hearth_torch"] = lambda: hearth(model_dir, threads, temperature, is_native=False)
    contenders = {key: make() for key, make in made.items() if only is None or key in only}
    versions = {}
    for engine, formats in PEER_FORMATS.items():
        python = arguments.vllm if engine == "vllm" else arguments.peers
        for kind in formats if python else ():
            if only is None or f"{engine}_{kind}" in only:
                peer = stack.enter_context(open_peer(python, engine, kind, model_dir, threads))
                contenders[f"{engine}_{kind}"], versions[engine] = peer
    return contenders, versions


def measure(name: str, scenario_name: str, contenders: dict[str, Contender], repeats: int) -> dict[str, Any]:
    scenario = SCENARIOS[scenario_name]
    best, first = dict.fromkeys(contenders, 0.0), {}
    for repeat in range(repeats + 1):
        for contender, generate in contenders.items():
            seconds, first[contender] = generate(scenario)
            if repeat:  # the first round is a warm-up
                best[contender] = max(best[contender], scenario.num_counted / seconds)
    hearth_tokens_per_s = best["hearth"]
    row = {"model": name, "scenario": scenario_name, **{key: round(value, 1) for key, value in best.items()}}
    row |= {f"ratio_{key}": round(hearth_tokens_per_s / value, 2) for key, value in best.items() if key != "hearth"}
    if scenario.num_streams > 1:
        pairs = {key: zip(first["hearth"], tokens, strict=True) for key, tokens in first.items()}
        row["same_first"] = {key: sum(a == b for a, b in pair) for key, pair in pairs.items()}
    print(json.dumps(row), file=sys.stderr)
    return row


def hearth(model_dir: Path, num_threads: int, temperature: float, *, is_native: bool = True) -> Contender:
    config = EngineConfig(model_dir=model_dir, num_threads=num_threads, is_prefix_cache_enabled=False)
    runner = Runner(config, None if is_native else CpuKernels())
    ids = iter(range(1 << 30))

    def generate(scenario: Scenario) -> tuple[float, list[int]]:
        engine, given = Engine(runner, config), prompts(scenario, runner.vocab_size)
        sampling = Sampling(max_tokens=scenario.num_out, temperature=temperature, ignore_eos=True, seed=1)
        started = time.perf_counter()
        first = run(engine, given, sampling, ids)
        return time.perf_counter() - started, first

    return generate


def run(
    engine: Engine, given: np.ndarray[Any, np.dtype[np.int64]], sampling: Sampling, ids: Iterator[int]
) -> list[int]:
    """Run all prompts to their ends and return the first token of each."""
    first: dict[int, int] = {}
    mine = [next(ids) for _ in given]
    for sequence_id, prompt in zip(mine, given, strict=True):
        engine.add(SequenceRequest(sequence_id, prompt.astype(np.int32), sampling, b"bench", 0))
    num_tokens = 0
    while engine.has_work:
        report = engine.step()
        num_tokens += report.num_entries
        if len(first) < len(mine):
            for sequence_id, token in zip(report.sequence_ids.tolist(), report.token_ids.tolist(), strict=True):
                first.setdefault(sequence_id, token)
    assert num_tokens == len(given) * sampling.max_tokens
    return [first[sequence_id] for sequence_id in mine]


def measure_warm(name: str, model_dir: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run a prompt of 2,048 tokens twice and return the median times to first token."""
    config = EngineConfig(model_dir=model_dir, num_threads=arguments.threads, kv_memory_bytes=1 << 30)
    runner, ids = Runner(config), iter(range(1 << 30))
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    for repeat in range(arguments.repeats + 1):
        engine = Engine(runner, config)
        given = np.random.default_rng(repeat).integers(3, runner.vocab_size, (1, NUM_WARM))
        for times in seconds.values():  # cold, then warm
            started = time.perf_counter()
            run(engine, given, Sampling(max_tokens=1, temperature=0.0, ignore_eos=True), ids)
            if repeat:
                times.append(time.perf_counter() - started)
    cold, warm = (float(np.median(times)) for times in seconds.values())
    row = {"model": name, "scenario": "warm2048", "cold_ms": round(cold * 1e3, 2), "warm_ms": round(warm * 1e3, 2)}
    row["ratio"] = round(warm / cold, 4)
    print(json.dumps(row), file=sys.stderr)
    return row


def transformers(model_dir: Path, dtype: torch.dtype, temperature: float) -> Contender:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    choice = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}

    def generate(scenario: Scenario) -> tuple[float, list[int]]:
        ids = torch.from_numpy(prompts(scenario, model.config.vocab_size))
        mask = torch.ones_like(ids)
        started = time.perf_counter()
        result = model.generate(ids, attention_mask=mask, max_new_tokens=scenario.num_out, pad_token_id=0, **choice)
        seconds = time.perf_counter() - started
        assert result.shape == (scenario.num_streams, scenario.num_in + scenario.num_out)
        return seconds, result[:, scenario.num_in].tolist()

    return generate


@contextmanager
def open_peer(
    python: str, engine: str, kind: str, model_dir: Path, num_threads: int
) -> Iterator[tuple[Contender, str]]:
    """Start an engine of another environment in its own process; yield the contender and its version."""
    command = [python, str(PEERS / f"with_{engine}.py"), str(model_dir), kind, str(num_threads)]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    vocab_size = json.loads((model_dir / "config.json").read_text())["vocab_size"]
    assert process.stdin is not None
    assert process.stdout is not None

    def read_result() -> dict[str, Any]:
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(command)} ended with status {process.wait()}")
        return json.loads(line)

    def generate(scenario: Scenario) -> tuple[float, list[int]]:
        request = {"prompts": prompts(scenario, vocab_size).tolist(), "num_out": scenario.num_out}
        print(json.dumps(request), file=process.stdin, flush=True)
        found = read_result()
        return found["seconds"], found["first"]

    try:
        yield generate, read_result()["version"]
    finally:
        process.stdin.close()
        process.wait()


def prompts(scenario: Scenario, vocab_size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the same prompts every time: int64 [streams, tokens]."""
    return np.random.default_rng(0).integers(3, vocab_size, (scenario.num_streams, scenario.num_in))


if __name__ == "__main__":
    main()
