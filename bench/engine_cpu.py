"""Decode speed of the engine on this CPU against transformers, both in one process, taking turns.

    python -m bench.engine_cpu [--threads 1] [--repeats 3] [--models spark,stories260K,m15] [--temperature 0]

128 tokens in, 128 out, end tokens ignored. `dec1` is one stream, `agg16` sixteen at once with their prefill. Ours is
the whole Engine (scheduler, forward, sampler, commit) without prefix cache, theirs `generate` with its default cache.
Figures are the best of the repeats; absolute values mean something only on an idle machine, ratios nearly always.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.config import EngineConfig
from engine.loop import Engine
from engine.protocol.tasks import Sampling
from engine.runner import Runner
from engine.sequence import SequenceRequest

NUM_IN, NUM_OUT = 128, 128
SCENARIOS = {"dec1": 1, "agg16": 16}
SPARK = Path("catalog/builtin/spark")
RANDOM_SHAPES: dict[str, dict[str, Any]] = {
    "spark": {
        "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "intermediate_size": 688, "vocab_size": 4096, "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
    "m15": {
        "hidden_size": 288, "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 6,
        "head_dim": 48, "intermediate_size": 768, "vocab_size": 32000, "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    },
    "m110": {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4,
        "head_dim": 64, "intermediate_size": 2048, "vocab_size": 32000, "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    },
}  # fmt: skip


def main() -> None:
    arguments = parse_arguments()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models.split(","):
            model_dir = find_model(name, Path(folder))
            results += compare(name, model_dir, arguments)
    json.dump({"threads": arguments.threads, "temperature": arguments.temperature, "results": results}, sys.stdout)
    print()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", default="spark,stories260K,m15")
    parser.add_argument("--temperature", type=float, default=0.0)
    return parser.parse_args()


def find_model(name: str, folder: Path) -> Path:
    """The real weights where we have them, else random ones of that shape, in bfloat16."""
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
    """Tokens per second of each contender in each scenario, and our ratio to the others."""
    contenders = {
        "hearth": hearth(model_dir, arguments.threads, arguments.temperature),
        "transformers_bf16": transformers(model_dir, torch.bfloat16, arguments.temperature),
        "transformers_f32": transformers(model_dir, torch.float32, arguments.temperature),
    }
    results = []
    for scenario, num_streams in SCENARIOS.items():
        best = dict.fromkeys(contenders, 0.0)
        for repeat in range(arguments.repeats + 1):
            for contender, generate in contenders.items():
                start = time.perf_counter()
                generate(num_streams)
                speed = num_streams * NUM_OUT / (time.perf_counter() - start)
                if repeat:  # the first round warms up
                    best[contender] = max(best[contender], speed)
        ours, bf16, f32 = best.values()
        row = {"model": name, "scenario": scenario, **{key: round(value, 1) for key, value in best.items()}}
        row |= {"ratio_bf16": round(ours / bf16, 2), "ratio_best": round(ours / max(bf16, f32), 2)}
        print(json.dumps(row), file=sys.stderr)
        results.append(row)
    return results


def hearth(model_dir: Path, num_threads: int, temperature: float) -> Callable[[int], None]:
    config = EngineConfig(model_dir=model_dir, num_threads=num_threads, is_prefix_cache_enabled=False)
    runner = Runner(config)
    next_id = 0

    def generate(num_streams: int) -> None:
        nonlocal next_id
        engine = Engine(runner, config)
        sampling = Sampling(max_tokens=NUM_OUT, temperature=temperature, ignore_eos=True, seed=1)
        for prompt in prompts(num_streams, runner.vocab_size):
            engine.add(SequenceRequest(next_id, prompt.astype(np.int32), sampling, b"bench", 0))
            next_id += 1
        num_tokens = 0
        while engine.has_work:
            num_tokens += engine.step().num_entries
        assert num_tokens == num_streams * NUM_OUT

    return generate


def transformers(model_dir: Path, dtype: torch.dtype, temperature: float) -> Callable[[int], None]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    choice = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}

    def generate(num_streams: int) -> None:
        ids = torch.from_numpy(prompts(num_streams, model.config.vocab_size))
        mask = torch.ones_like(ids)
        result = model.generate(ids, attention_mask=mask, max_new_tokens=NUM_OUT, pad_token_id=0, **choice)
        assert result.shape == (num_streams, NUM_IN + NUM_OUT)

    return generate


def prompts(num_streams: int, vocab_size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """int64 [streams, NUM_IN], the same every time."""
    return np.random.default_rng(0).integers(3, vocab_size, (num_streams, NUM_IN))


if __name__ == "__main__":
    main()
