"""Compare decoding with and without speculation in one process.

    python -m bench.speculation [--model catalog/builtin/spark] [--draft FOLDER] [--threads 1] [--rounds 5]

"Echo" text is a chat that asks for its own words again; "plain" text is a chat that does not. All contenders get the
same requests, greedy, in alternating rounds; the first round is a warm-up. `ratio` is the median over the rounds of a
contender's tokens per second relative to decoding without draft tokens; `same` is true if all tokens are equal. Prints
one JSON line per text, number of streams and contender.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import EngineConfig
from engine.loop import Engine
from engine.protocol.sampling import Sampling
from engine.runner import Runner
from engine.scheduling.sequence import SequenceRequest
from engine.speculation.factory import make_drafter
from engine.text.tokenizer import Tokenizer

STREAMS = (1, 2, 4, 16)
MAX_TOKENS = 160
WORDS = (
    "the blue kettle stands on the old table near the door and the small dog sleeps under it while the rain falls on "
    "the garden and a green boat waits at the river for the three men who bring bread and milk to the market"
).split()
NUM_WORDS = 24  # the most that Spark repeats without an error
PLAIN = (
    "Tell me about the sea.", "What can you do?", "Who are you?", "Say something kind to me.", "What is a river?",
    "How do I make tea?", "Tell me a short story.", "What do dogs like?",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("catalog/builtin/spark"))
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--free", type=int, default=EngineConfig(Path()).free_step_tokens)
    parser.add_argument("--streams", default=",".join(map(str, STREAMS)))
    parser.add_argument("--texts", default="echo,plain")
    arguments = parser.parse_args()
    config = EngineConfig(
        arguments.model,
        dtype=arguments.dtype,
        num_threads=arguments.threads,
        free_step_tokens=arguments.free,
        is_prefix_cache_enabled=False,
    )
    modes = ["off", "prompt_lookup"] + ([f"draft:{arguments.draft}"] if arguments.draft else [])
    bench = Bench(config, modes, arguments.temperature)
    for text in arguments.texts.split(","):
        for streams in map(int, arguments.streams.split(",")):
            for row in bench.compare(text, streams, arguments.rounds):
                print(json.dumps(row), flush=True)


class Bench:
    """One model and its drafters."""

    def __init__(self, config: EngineConfig, modes: list[str], temperature: float) -> None:
        self._config = config
        self._temperature = temperature
        self._runner = Runner(config)
        self._tokenizer = Tokenizer(config.model_dir)
        self._drafter = {
            mode: make_drafter(dataclasses.replace(config, speculation=mode), self._runner.max_model_len)
            for mode in modes
        }
        self._next_id = 1

    def compare(self, text: str, streams: int, rounds: int) -> list[dict[str, Any]]:
        speeds: dict[str, list[float]] = {mode: [] for mode in self._drafter}
        tokens: dict[str, Any] = {}
        numbers: dict[str, Any] = {}
        for number in range(rounds + 1):
            for mode in self._drafter:
                seconds, tokens[mode], numbers[mode] = self._run(mode, text, streams)
                if number:
                    speeds[mode].append(sum(map(len, tokens[mode])) / seconds)
        return [
            {
                "text": text,
                "streams": streams,
                "mode": mode,
                "tokens_per_s": round(statistics.median(speeds[mode]), 1),
                "ratio": round(
                    statistics.median(mine / off for mine, off in zip(speeds[mode], speeds["off"], strict=True)), 3
                ),
                "guessed": numbers[mode][0],
                "right": numbers[mode][1],
                "tokens": sum(map(len, tokens[mode])),
                "same": tokens[mode] == tokens["off"],
            }
            for mode in self._drafter
        ]

    def _run(self, mode: str, text: str, streams: int) -> tuple[float, list[list[int]], tuple[int, int]]:
        """Return seconds, the tokens of each stream, and the numbers of draft tokens and accepted ones."""
        engine = Engine(self._runner, self._config, drafter=self._drafter[mode])
        sampling = Sampling(max_tokens=MAX_TOKENS, temperature=self._temperature, seed=7)
        first = self._next_id
        self._next_id += streams
        drawn: dict[int, list[int]] = {first + number: [] for number in range(streams)}
        for number in range(streams):
            prompt = np.array(self._prompt(text, number), dtype=np.int32)
            engine.add(SequenceRequest(first + number, prompt, sampling, b"bench", 0))
        start = time.perf_counter()
        while engine.has_work:
            report = engine.step()
            for sequence_id, token_id in zip(report.sequence_ids.tolist(), report.token_ids.tolist(), strict=True):
                drawn[sequence_id].append(token_id)
        status = engine.status()
        return time.perf_counter() - start, list(drawn.values()), (status.num_drafted, status.num_accepted)

    def _prompt(self, text: str, number: int) -> list[int]:
        if text == "plain":
            question = PLAIN[number % len(PLAIN)]
        else:
            words = WORDS[number % 8 :] + WORDS[: number % 8]
            question = f"Repeat after me: {' '.join(words[:NUM_WORDS])}."
        return self._tokenizer.encode_conversation([{"role": "user", "content": question}])


if __name__ == "__main__":
    main()
