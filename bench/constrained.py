"""Measure the cost of structured output with the built-in model. Prints JSON.

    python -m bench.constrained [--model spark] [--streams 16] [--requests 64] [--repeats 5] [--threads 1] [--schemas 8]

"throughput": a closed loop of `--streams` concurrent requests. Each request has its own schema from `data/tools`, or
all requests share `--schemas` of them. The same prompts run without constraints for the same number of tokens. Both
runs alternate every 16 steps so that they see the same machine. The loss is the median of the pairs' ratios of tokens
per second, by wall clock and by CPU time of the engine's thread. Compilation is included: each run has a new engine.
Garbage is collected between runs, as in a rank. `--model m110` is a random bfloat16 model of 110 M parameters with the
built-in tokenizer; it does not tend to write JSON, so most of its draws are rejected.

"compile": milliseconds to compile each schema, and for the front's complete check of an unknown one. "met": how many of
200 requests from `data/structured` and `data/tools` that the compiler accepts give a matching response;
"unclosed": how many were cut off by the token limit.
HEARTH_TEST_DATA names the data folder.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from bench.engine_cpu import RANDOM_SHAPES
from bench.published_schemas import function_schemas, suite_schemas
from engine.config import EngineConfig
from engine.loop import Engine
from engine.protocol.output_format import Constraint
from engine.protocol.sampling import Sampling
from engine.report import FINISHES, StepReport
from engine.runner import Runner
from engine.scheduling.sequence import SequenceRequest
from engine.structured.check_worker import refusal_of
from engine.structured.checker import ConstraintChecker
from engine.structured.compile import compile_matcher
from engine.structured.vocabulary import Vocabulary, read_vocabulary
from engine.text.tokenizer import Tokenizer

SPARK = Path(__file__).parents[1] / "catalog/builtin/spark"
MAX_TOKENS = 256
NAMESPACE = b"n" * 32
SLICE = 16  # steps that each run of a pair takes before the other continues

Request = tuple[str, Constraint | None, Sampling]


def main() -> None:
    arguments = parse_arguments()
    data = Path(os.environ.get("HEARTH_TEST_DATA", "../shared/data"))
    if not (data / "tools").is_dir():
        sys.exit(f"{data} holds no evaluation data: set HEARTH_TEST_DATA")
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        model_dir = SPARK if arguments.model == "spark" else random_model(Path(folder))
        runner = Runner(EngineConfig(model_dir=model_dir, num_threads=arguments.threads))
    view = read_vocabulary(SPARK, runner.vocab_size, runner.eos_token_ids)
    functions = [schema for schema in function_schemas(data) if not refusal_of(constraint_of(schema), view)]
    results: dict[str, Any] = {"load_average": os.getloadavg(), "num_schemas": len(functions)}
    results["compile"] = measure_compiling(functions, view) | asyncio.run(measure_checking(functions[:200]))
    loop = Loop(runner, arguments.streams, arguments.threads)
    results["throughput"] = compare(loop, functions, arguments.requests, arguments.schemas, arguments.repeats)
    suite = [schema for schema in suite_schemas(data) if not refusal_of(constraint_of(schema), view)]
    results["met"] = count_matching(loop, suite + functions, 200)
    json.dump(results, sys.stdout)
    print()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("spark", "m110"), default="spark")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--schemas", type=int, default=0, help="different ones in a run; 0: one for each request")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def random_model(folder: Path) -> Path:
    """Return the folder of a random model of shape m110 with the built-in model's vocabulary."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    ends = json.loads((SPARK / "config.json").read_text())["eos_token_id"]
    shape = RANDOM_SHAPES["m110"] | {"vocab_size": 4096}
    LlamaForCausalLM(LlamaConfig(**shape, bos_token_id=None, eos_token_id=ends)).bfloat16().save_pretrained(folder)
    return folder


def constraint_of(schema: dict[str, Any]) -> Constraint:
    return Constraint("json_schema", json.dumps(schema))


class ConstrainedRun:
    """A fixed number of concurrent requests in an engine of their own, advanced some steps at a time.

    `seconds` and `cpu_seconds` (of this thread) cover the steps. `tokens` and `ends` are per request, without end
    tokens.
    """

    def __init__(self, engine: Engine, sequences: list[SequenceRequest], num_streams: int) -> None:
        self._engine = engine
        self._waiting = sequences[::-1]
        self._indices = {sequence.sequence_id: index for index, sequence in enumerate(sequences)}
        self._num_streams = num_streams
        self._num_open = 0
        self.seconds = self.cpu_seconds = 0.0
        self.tokens: list[list[int]] = [[] for _ in sequences]
        self.ends = [""] * len(sequences)

    @property
    def is_over(self) -> bool:
        return not (self._waiting or self._num_open)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))

    def advance(self, num_steps: float = math.inf) -> None:
        """Run `num_steps` steps. Waiting for a grammar matcher counts, because compilation is part of the cost."""
        started, cpu_started, step = time.perf_counter(), time.thread_time(), 0
        while not self.is_over and (step < num_steps or self._engine.matchers.is_compiling):
            while self._waiting and self._num_open < self._num_streams:
                self._engine.add(self._waiting.pop())
                self._num_open += 1
            self._note(self._engine.step())
            step += 1
        self.seconds += time.perf_counter() - started
        self.cpu_seconds += time.thread_time() - cpu_started

    def _note(self, report: StepReport) -> None:
        columns = zip(report.sequence_ids.tolist(), report.token_ids.tolist(), report.finishes.tolist(), strict=True)
        for sequence_id, token_id, code in columns:
            index = self._indices[sequence_id]
            if token_id >= 0 and FINISHES[code] != "stop":
                self.tokens[index].append(token_id)
            if code:
                self.ends[index] = FINISHES[code] or ""
                self._num_open -= 1


class Loop:
    """Create runs, each with a fresh engine. At most two exist at a time."""

    def __init__(self, runner: Runner, num_streams: int, num_threads: int) -> None:
        self._runner = runner
        self._num_streams = num_streams
        self._config = EngineConfig(
            model_dir=SPARK, num_threads=num_threads, max_sequences=num_streams, is_prefix_cache_enabled=False
        )
        self._tokenizer = Tokenizer(SPARK)
        self._next_id = 1  # the runner remembers sequences by id

    def start_run(self, requests: list[Request], half: int) -> ConstrainedRun:
        """Create a run that uses one half (0 or 1) of the runner's blocks."""
        engine = Engine(self._runner, self._config)
        engine.matchers.warm_up().result()
        halves = [engine.blocks.allocate(self._runner.num_blocks // 2) for _ in range(2)]
        engine.blocks.release(halves[half])
        first = self._next_id
        self._next_id += len(requests)
        sequences = [self._sequence(first + index, *request) for index, request in enumerate(requests)]
        return ConstrainedRun(engine, sequences, self._num_streams)

    def decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids)

    def _sequence(
        self, sequence_id: int, prompt: str, constraint: Constraint | None, sampling: Sampling
    ) -> SequenceRequest:
        ids = self._tokenizer.encode_conversation([{"role": "user", "content": prompt}])
        return SequenceRequest(
            sequence_id, np.array(ids, dtype=np.int32), sampling, NAMESPACE, tenant=1, constraint=constraint
        )


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection, as in a rank, which collects only while it waits."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def prompt_for(schema: dict[str, Any]) -> str:
    return f"StreamResult with JSON that fits this: {json.dumps(schema)[:400]}"


def compare(
    loop: Loop, schemas: list[dict[str, Any]], num_requests: int, num_schemas: int, repeats: int
) -> dict[str, Any]:
    losses: list[tuple[float, float]] = []  # by wall clock; by the thread's CPU time
    rates: list[tuple[int, int]] = []
    for repeat in range(repeats + 1):
        different = random.Random(repeat).sample(schemas, min(num_schemas or num_requests, len(schemas)))
        drawn = [different[number % len(different)] for number in range(num_requests)]
        sampling = [Sampling(max_tokens=MAX_TOKENS, temperature=0.8, seed=seed) for seed in range(len(drawn))]
        requests: list[Request] = [
            (prompt_for(one), constraint_of(one), how) for one, how in zip(drawn, sampling, strict=True)
        ]
        first = loop.start_run(requests, 0)
        first.advance()
        free_requests: list[Request] = [
            (prompt, None, replace(how, max_tokens=max(1, len(tokens)), ignore_eos=True))
            for (prompt, _, how), tokens in zip(requests, first.tokens, strict=True)
        ]
        constrained, free = loop.start_run(requests, 0), loop.start_run(free_requests, 1)
        with no_garbage_collection():
            while not (constrained.is_over and free.is_over):
                for run in (constrained, free) if repeat % 2 else (free, constrained):
                    run.advance(SLICE)
        assert constrained.tokens == first.tokens
        if repeat:  # the first pair is a warm-up
            # A response without tokens is compared with a run of one token.
            share = (
                constrained.num_tokens / free.num_tokens
            )  # a response without tokens is compared with a run of one token
            losses.append(
                (1 - share * free.seconds / constrained.seconds, 1 - share * free.cpu_seconds / constrained.cpu_seconds)
            )
            rates.append((round(constrained.num_tokens / constrained.seconds), round(free.num_tokens / free.seconds)))
    wall, cpu = np.array(losses).T
    return {
        "constrained_tokens_s": [constrained for constrained, _ in rates],
        "free_tokens_s": [free for _, free in rates],
        "loss": _percentile(wall, 50),
        "loss_quartiles": [_percentile(wall, 25), _percentile(wall, 75)],
        "losses": [round(loss, 4) for loss in wall.tolist()],
        "thread_cpu_loss": _percentile(cpu, 50),
        "thread_cpu_loss_quartiles": [_percentile(cpu, 25), _percentile(cpu, 75)],
    }


def measure_compiling(schemas: list[dict[str, Any]], view: Vocabulary) -> dict[str, float]:
    times = []
    for schema in schemas:
        started = time.perf_counter()
        compile_matcher(constraint_of(schema), view)
        times.append((time.perf_counter() - started) * 1e3)
    return {"p50_ms": _percentile(times, 50), "p95_ms": _percentile(times, 95), "max_ms": _percentile(times, 100)}


async def measure_checking(schemas: list[dict[str, Any]]) -> dict[str, float]:
    """Measure how long a request waits for the front to check a schema that its tenant has not sent before."""
    checker = ConstraintChecker(SPARK, 4096, (0, 2))
    times = []
    try:
        await checker.check(Constraint("json_object"), NAMESPACE)  # starts the worker
        for schema in schemas:
            started = time.perf_counter()
            await checker.check(constraint_of(schema), NAMESPACE)
            times.append((time.perf_counter() - started) * 1e3)
    finally:
        await checker.close()
    return {"check_p50_ms": _percentile(times, 50), "check_p95_ms": _percentile(times, 95)}


def count_matching(loop: Loop, schemas: list[dict[str, Any]], num_requests: int) -> dict[str, Any]:
    """Count responses that match their schema, at temperatures 0, 0.6 and 1."""
    drawn = random.Random(7).sample(schemas, min(num_requests, len(schemas)))
    sampling = [
        Sampling(max_tokens=MAX_TOKENS, temperature=(0.0, 0.6, 1.0)[seed % 3], seed=seed) for seed in range(len(drawn))
    ]
    run = loop.start_run(
        [(prompt_for(schema), constraint_of(schema), how) for schema, how in zip(drawn, sampling, strict=True)], 0
    )
    run.advance()
    failures = [
        {"schema": schema, "text": loop.decode(tokens), "end": end}
        for schema, tokens, end in zip(drawn, run.tokens, run.ends, strict=True)
        if end != "unclosed" and not matches_schema(schema, loop.decode(tokens))
    ]
    unclosed = run.ends.count("unclosed")
    met = len(drawn) - len(failures) - unclosed
    return {"requested": len(drawn), "met": met, "unclosed": unclosed, "failures": failures[:5]}


def matches_schema(schema: dict[str, Any], text: str) -> bool:
    try:
        return jsonschema_rs.is_valid(schema, json.loads(text))
    except ValueError:
        return False


def _percentile(values: Sequence[float] | NDArray[np.float64], percent: float) -> float:
    return round(float(np.percentile(values, percent)), 4)


if __name__ == "__main__":
    main()
