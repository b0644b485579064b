"""What constraints cost, with the built-in model: `python -m bench.constrained` prints JSON.

    python -m bench.constrained [--streams 16] [--requests 96] [--repeats 5] [--threads 1] [--schemas 8]

"throughput": closed loop of `--streams` requests, each with a schema of its own from the functions of `data/tools`, or
all together with `--schemas` of them, as programs ask that have a few; then the same prompts without constraints, each
made to run for as many tokens as its constrained twin. They take turns; the loss is the median of the pairs' ratios of
tokens per second. Compiling is part of it: each run has a new engine. Garbage is collected between the runs and not in
them, as a rank does.
"compile": milliseconds to compile each of those schemas, and for the front's whole check of one never seen. "met": of
200 requests drawn from `data/structured` and `data/tools` that the compiler takes, how many answers meet their schema.
HEARTH_TEST_DATA names the data folder.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import torch

from bench.published_schemas import function_schemas, suite_schemas
from engine.config import EngineConfig
from engine.constraints.checker import ConstraintChecker
from engine.constraints.compile import compile_matcher
from engine.constraints.token_view import TokenView, read_token_view
from engine.constraints.worker import judge
from engine.loop import Engine
from engine.protocol.tasks import Constraint, Sampling
from engine.report import FINISHES
from engine.runner import Runner
from engine.sequence import SequenceRequest
from engine.tokenizer import Tokenizer

SPARK = Path(__file__).parents[1] / "catalog/builtin/spark"
MAX_TOKENS = 256
NAMESPACE = b"n" * 32


def main() -> None:
    arguments = parse_arguments()
    data = Path(os.environ.get("HEARTH_TEST_DATA", "../shared/data"))
    if not (data / "tools").is_dir():
        sys.exit(f"{data} holds no evaluation data: set HEARTH_TEST_DATA")
    torch.set_num_threads(arguments.threads)
    runner = Runner(EngineConfig(model_dir=SPARK, num_threads=arguments.threads))
    view = read_token_view(SPARK, runner.vocab_size, runner.eos_token_ids)
    functions = [schema for schema in function_schemas(data) if not judge(constraint_of(schema), view)]
    results: dict[str, Any] = {"load_average": os.getloadavg(), "num_schemas": len(functions)}
    results["compile"] = measure_compiling(functions, view) | asyncio.run(measure_checking(functions[:200]))
    loop = Loop(runner, arguments.streams, arguments.threads)
    results["throughput"] = compare(loop, functions, arguments.requests, arguments.schemas, arguments.repeats)
    suite = [schema for schema in suite_schemas(data) if not judge(constraint_of(schema), view)]
    results["met"] = count_met(loop, suite + functions, 200)
    json.dump(results, sys.stdout)
    print()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--schemas", type=int, default=0, help="different ones in a run; 0: one for each request")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def constraint_of(schema: dict[str, Any]) -> Constraint:
    return Constraint("json_schema", json.dumps(schema))


class Loop:
    """Requests kept at a fixed number in flight, each run over a fresh engine."""

    def __init__(self, runner: Runner, num_streams: int, num_threads: int) -> None:
        self._runner = runner
        self._num_streams = num_streams
        self._config = EngineConfig(
            model_dir=SPARK, num_threads=num_threads, max_sequences=num_streams, is_prefix_cache_enabled=False
        )
        self._tokenizer = Tokenizer(SPARK)
        self._next_id = 1  # the runner remembers sequences by their ids

    def run(self, requests: list[tuple[str, Constraint | None, Sampling]]) -> tuple[float, list[list[int]], list[str]]:
        """Seconds, and for each request its tokens without an end token, and how it ended."""
        engine = Engine(self._runner, self._config)
        engine.matchers.warm().result()
        first, waiting = self._next_id, list(enumerate(requests))[::-1]
        self._next_id += len(requests)
        tokens: list[list[int]] = [[] for _ in requests]
        ends = [""] * len(requests)
        num_open = 0
        gc.collect()
        gc.freeze()
        gc.disable()
        started = time.perf_counter()
        while waiting or num_open:
            while waiting and num_open < self._num_streams:
                index, request = waiting.pop()
                engine.add(self._sequence(first + index, *request))
                num_open += 1
            report = engine.step()
            columns = zip(report.sequence_ids, report.token_ids, report.finishes, strict=True)
            for sequence_id, token_id, code in columns:
                index = int(sequence_id) - first
                if token_id >= 0 and FINISHES[code] != "stop":
                    tokens[index].append(int(token_id))
                if code:
                    ends[index] = FINISHES[code] or ""
                    num_open -= 1
        seconds = time.perf_counter() - started
        gc.enable()
        return seconds, tokens, ends

    def decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids)

    def _sequence(
        self, sequence_id: int, prompt: str, constraint: Constraint | None, sampling: Sampling
    ) -> SequenceRequest:
        ids = self._tokenizer.encode_conversation([{"role": "user", "content": prompt}])
        return SequenceRequest(
            sequence_id, np.array(ids, dtype=np.int32), sampling, NAMESPACE, tenant=1, constraint=constraint
        )


def prompt_for(schema: dict[str, Any]) -> str:
    return f"Answer with JSON that fits this: {json.dumps(schema)[:400]}"


def compare(
    loop: Loop, schemas: list[dict[str, Any]], num_requests: int, num_schemas: int, repeats: int
) -> dict[str, Any]:
    rates: list[tuple[float, float]] = []
    for repeat in range(repeats + 1):
        different = random.Random(repeat).sample(schemas, min(num_schemas or num_requests, len(schemas)))
        drawn = [different[number % len(different)] for number in range(min(num_requests, len(schemas)))]
        sampling = [Sampling(max_tokens=MAX_TOKENS, temperature=0.8, seed=seed) for seed in range(len(drawn))]
        held = [(prompt_for(one), constraint_of(one), how) for one, how in zip(drawn, sampling, strict=True)]
        held_s, tokens, _ = loop.run(held)
        free = [
            (prompt, None, Sampling(max_tokens=max(1, len(said)), temperature=0.8, seed=how.seed, ignore_eos=True))
            for (prompt, _, how), said in zip(held, tokens, strict=True)
        ]
        free_s, free_tokens, _ = loop.run(free)
        if repeat:  # the first pair warms up
            rates.append((sum(map(len, tokens)) / held_s, sum(map(len, free_tokens)) / free_s))
    ratios = [constrained / unconstrained for constrained, unconstrained in rates]
    return {
        "constrained_tokens_s": [round(rate) for rate, _ in rates],
        "free_tokens_s": [round(rate) for _, rate in rates],
        "loss": round(1 - float(np.median(ratios)), 4),
        "losses": [round(1 - ratio, 4) for ratio in ratios],
    }


def measure_compiling(schemas: list[dict[str, Any]], view: TokenView) -> dict[str, float]:
    times = []
    for schema in schemas:
        started = time.perf_counter()
        compile_matcher(constraint_of(schema), view)
        times.append((time.perf_counter() - started) * 1e3)
    return {"p50_ms": _percentile(times, 50), "p95_ms": _percentile(times, 95), "max_ms": _percentile(times, 100)}


async def measure_checking(schemas: list[dict[str, Any]]) -> dict[str, float]:
    """What a request waits for the front to check a schema that its tenant never sent before."""
    checker = ConstraintChecker(SPARK, 4096, (0, 2))
    times = []
    try:
        await checker.check(Constraint("json_object"), NAMESPACE)  # the worker is up
        for schema in schemas:
            started = time.perf_counter()
            await checker.check(constraint_of(schema), NAMESPACE)
            times.append((time.perf_counter() - started) * 1e3)
    finally:
        await checker.close()
    return {"check_p50_ms": _percentile(times, 50), "check_p95_ms": _percentile(times, 95)}


def count_met(loop: Loop, schemas: list[dict[str, Any]], num_requests: int) -> dict[str, Any]:
    """At temperatures 0, 0.6 and 1, in turns."""
    drawn = random.Random(7).sample(schemas, min(num_requests, len(schemas)))
    sampling = [
        Sampling(max_tokens=MAX_TOKENS, temperature=(0.0, 0.6, 1.0)[seed % 3], seed=seed) for seed in range(len(drawn))
    ]
    _, tokens, ends = loop.run(
        [(prompt_for(schema), constraint_of(schema), how) for schema, how in zip(drawn, sampling, strict=True)]
    )
    failures = [
        {"schema": schema, "text": loop.decode(said), "end": end}
        for schema, said, end in zip(drawn, tokens, ends, strict=True)
        if not is_met(schema, loop.decode(said))
    ]
    return {"asked": len(drawn), "met": len(drawn) - len(failures), "failures": failures[:5]}


def is_met(schema: dict[str, Any], text: str) -> bool:
    try:
        return jsonschema_rs.is_valid(schema, json.loads(text))
    except ValueError:
        return False


def _percentile(times: list[float], percent: float) -> float:
    return round(float(np.percentile(times, percent)), 3)


if __name__ == "__main__":
    main()
