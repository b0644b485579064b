"""Compare TTFT of calls whose 900-token system prompt is cached with calls whose prompt is not. Goal: 0.35 × or less.

    python -m bench.prefix_ttft [--rounds 15]

Runs a whole platform on Spark. Cold calls use new system prompts; warm calls repeat one with a different question, so
only the shared prefix can be reused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
from typing import Any

from tokenizers import Tokenizer

from bench.http_streams import SPARK, WORDS
from bench.platform_under_test import PlatformAddress, machine, platform, stream_all


def system_prompt(tokenizer: Tokenizer, seed: int, num_tokens: int) -> str:
    choose = random.Random(seed)
    text = " ".join(choose.choice(WORDS) for _ in range(num_tokens * 2))
    return str(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids[:num_tokens]))


def ttft_ms(platform_address: PlatformAddress, system: str, question: str) -> tuple[float, int]:
    """Return milliseconds to the first event and the number of cached prompt tokens of one call."""
    body: dict[str, Any] = {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
        "max_tokens": 4,
        "temperature": 0,
    }
    (events,) = asyncio.run(stream_all(platform_address, [body]))
    details = events[-1][1]["usage"].get("prompt_tokens_details", {})
    return events[0][0] * 1000, details.get("cached_tokens", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--system-tokens", type=int, default=900)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(SPARK / "tokenizer.json"))
    cold, warm, cached = [], [], []
    with platform() as platform_address:
        ttft_ms(platform_address, system_prompt(tokenizer, -1, 32), "Hello")
        for number in range(options.rounds):
            system = system_prompt(tokenizer, number, options.system_tokens)
            milliseconds, hit = ttft_ms(platform_address, system, "Hello")
            assert hit < 64, hit
            cold.append(milliseconds)
            milliseconds, hit = ttft_ms(platform_address, system, "What is your name?")
            assert hit >= options.system_tokens - 32, hit
            warm.append(milliseconds)
            cached.append(hit)
    figures = {"cold_ms": round(statistics.median(cold), 1), "warm_ms": round(statistics.median(warm), 1)}
    ratio = round(statistics.median(warm) / statistics.median(cold), 3)
    print(
        json.dumps(
            {"bench": "prefix_ttft", **figures, "ratio": ratio, "goal": 0.35, "cached": min(cached), **machine()}
        )
    )


if __name__ == "__main__":
    main()
