"""Compare concurrent streams over HTTP with `transformers` generating the same batch. Goal: 2 × or more.

    python -m bench.http_streams [--streams 16] [--prompt-tokens 128] [--new-tokens 128] [--rounds 3]

Hearth: a whole platform on Spark, from the client's socket to the usage entry. transformers: `generate` in this
process, bf16 and float32, greedy, no HTTP. Rounds alternate; ratios are of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from bench.platform_under_test import PlatformAddress, completion_tokens, machine, platform, stream_all

SPARK = Path("catalog/builtin/spark")
WORDS = "the river runs past an old stone mill where seven lamps burn all night and nobody asks who lit them".split()


def prompts(count: int, num_words: int, seed: int) -> list[str]:
    choose = random.Random(seed)
    return [" ".join(choose.choice(WORDS) for _ in range(num_words)) for _ in range(count)]


def hearth_tokens_per_s(platform_address: PlatformAddress, texts: list[str], new_tokens: int) -> tuple[float, float]:
    """Return tokens/s over all streams and the median TTFT in ms."""
    body = {"raw": True, "max_tokens": new_tokens, "ignore_eos": True, "temperature": 0}
    started = time.perf_counter()
    streams = asyncio.run(stream_all(platform_address, [body | {"prompt": text} for text in texts]))
    elapsed = time.perf_counter() - started
    generated = sum(completion_tokens(events) for events in streams)
    assert generated == len(texts) * new_tokens, generated
    return generated / elapsed, statistics.median(events[0][0] for events in streams) * 1000


def transformers_tokens_per_s(model: Any, ids: Any, new_tokens: int) -> float:
    """Return tokens/s of one `generate` call over the batch."""
    started = time.perf_counter()
    out = model.generate(ids, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, pad_token_id=0)
    assert out.shape[1] == ids.shape[1] + new_tokens
    return out.shape[0] * new_tokens / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    models = {
        name: AutoModelForCausalLM.from_pretrained(SPARK, dtype=getattr(torch, name))
        for name in ("bfloat16", "float32")
    }
    tokenizer = Tokenizer.from_file(str(SPARK / "tokenizer.json"))
    figures: dict[str, list[float]] = {"hearth_http": [], "ttft_ms": [], **{name: [] for name in models}}
    with platform() as platform_address:
        hearth_tokens_per_s(platform_address, prompts(options.streams, 20, 0), 8)
        for number in range(1, options.rounds + 1):
            texts = prompts(options.streams, options.prompt_tokens, number)
            ids = [tokenizer.encode(text, add_special_tokens=False).ids[: options.prompt_tokens] for text in texts]
            texts = [tokenizer.decode(row) for row in ids]
            rate, ttft_ms = hearth_tokens_per_s(platform_address, texts, options.new_tokens)
            figures["hearth_http"].append(rate)
            figures["ttft_ms"].append(ttft_ms)
            for name, model in models.items():
                figures[name].append(transformers_tokens_per_s(model, torch.tensor(ids), options.new_tokens))
    medians = {name: round(statistics.median(values), 1) for name, values in figures.items()}
    ratios = {f"ratio_to_{name}": round(medians["hearth_http"] / medians[name], 2) for name in models}
    print(json.dumps({"bench": "http_streams", **vars(options), **medians, **ratios, "goal": 2.0, **machine()}))


if __name__ == "__main__":
    main()
