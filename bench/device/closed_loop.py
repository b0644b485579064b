"""A closed loop over an engine in this process: as many sequences in flight as wanted, and figures of it.

The steady state begins when every sequence of the opening burst has a token, and ends when no new one arrives.
Latencies are those of the steady state if it is long enough.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import EngineConfig
from engine.inputs import StepInputs, StepOutput
from engine.launched_step import PendingOutput
from engine.loop import Engine
from engine.protocol.sampling import Sampling
from engine.runner import Runner
from engine.scheduling.sequence import SequenceRequest

LENGTHS = Path(__file__).parent / "lengths.json"
_MIN_WINDOW_S = 1.0


@dataclass(frozen=True)
class Load:
    """The load: at most `num_requests` arrive within `seconds`, then the rest has `drain_s` to end. `scale` shortens
    prompts and completions."""

    parameters: dict[str, Any]
    in_flight: int
    max_step_tokens: int
    seconds: float
    drain_s: float = 60.0
    num_requests: int = 4000
    scale: float = 1.0


def pairs(scale: float = 1.0) -> list[tuple[int, int]]:
    """Return prompt and completion lengths, in the order of their requests."""
    found = json.loads(LENGTHS.read_text())["pairs"]
    return [(max(int(a * scale), 1), max(int(b * scale), 1)) for a, b in found]


class _TimedRunner:
    """A runner whose calls are timed."""

    def __init__(self, runner: Runner, times: Counter[str]) -> None:
        self._runner, self._times = runner, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, inputs: StepInputs) -> _TimedOutput:
        return _TimedOutput(_timed(self._runner.launch, "launch", self._times)(inputs), self._times)


@dataclass(frozen=True)
class _TimedOutput:
    output: PendingOutput
    times: Counter[str]

    def wait(self) -> StepOutput:
        output: StepOutput = _timed(self.output.wait, "wait for the device", self.times)()
        return output


def _timed(function: Callable[..., Any], name: str, times: Counter[str]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        started = time.perf_counter()
        result = function(*arguments)
        times[name] += time.perf_counter() - started  # type: ignore[assignment]
        return result

    return call


@dataclass
class _Trace:
    """Events of a closed loop. Times are seconds since the start."""

    added_s: dict[int, float] = field(default_factory=dict)
    last_s: dict[int, float] = field(default_factory=dict)
    ttft: list[tuple[float, float]] = field(default_factory=list)  # when, how long
    itl: list[tuple[float, float]] = field(default_factory=list)
    steps: list[tuple[float, float]] = field(default_factory=list)
    tokens: list[tuple[float, int, int, float]] = field(default_factory=list)  # when, prompt, output, busy s so far
    num_in: int = 0
    num_out: int = 0


def run(runner: Runner, load: Load) -> dict[str, Any]:
    """Return the figures of one closed loop."""
    config = EngineConfig(
        Path(), max_sequences=load.in_flight, max_step_tokens=load.max_step_tokens, is_prefix_cache_enabled=False
    )
    times: Counter[str] = Counter()
    engine, trace = Engine(_TimedRunner(runner, times), config), _Trace()
    engine.scheduler.schedule = _timed(engine.scheduler.schedule, "schedule", times)  # type: ignore[method-assign]
    engine.postprocessor.process = _timed(engine.postprocessor.process, "process", times)  # type: ignore[method-assign]
    kinds_before = _step_kinds(runner)
    cpu_s, started = time.process_time(), time.perf_counter()
    closed_s, is_cut = _drive(engine, load, trace, started)
    total_s = time.perf_counter() - started
    cpu_s = time.process_time() - cpu_s
    steady = _window(trace, load.in_flight, closed_s)
    times["other"] = sum(took for _, took in trace.steps) - sum(times.values())  # type: ignore[assignment]
    return {
        "requests": len(trace.added_s),
        "seconds": round(total_s, 2),
        "whole_run": None if is_cut else _rates(trace.num_in, trace.num_out, total_s, len(trace.added_s)),
        "steady": steady,
        "ttft_ms": _percentiles(_within(trace.ttft, steady)),
        "ttft_opening_ms": _percentiles([took for _, took in trace.ttft[: load.in_flight]]),
        "itl_ms": _percentiles(_within(trace.itl, steady)),
        "step_ms": _percentiles(_within(trace.steps, steady)),
        "num_steps": len(trace.steps),
        "step_parts_ms": {name: round(1000 * spent / len(trace.steps), 3) for name, spent in times.items()},
        "device_busy": round(engine.device_time.busy_us / 1e6 / total_s, 4),
        "wasted": round(engine.device_time.wasted_us / max(engine.device_time.busy_us, 1.0), 4),
        "cpu_cores": round(cpu_s / total_s, 3),
        "steps_by_kind": dict(_step_kinds(runner) - kinds_before),
        "synchronous": dict(engine.num_synchronous),
        "preemptions": engine.scheduler.num_preemptions,
    }


def _drive(engine: Engine, load: Load, trace: _Trace, started: float) -> tuple[float, bool]:
    """Run the loop. Return the time when arrivals ended, and True if not all sequences ran to their end."""
    lengths, rng = pairs(load.scale)[: load.num_requests], np.random.default_rng(0)
    prompts = [rng.integers(3, engine.info.vocab_size, num_in).astype(np.int32) for num_in, _ in lengths]
    next_id, closed_s, is_cut = 0, 0.0, False
    while True:
        now = time.perf_counter() - started
        if not closed_s and (now >= load.seconds or next_id == len(lengths)):
            closed_s = now
        while not closed_s and len(engine.sequences) < load.in_flight and next_id < len(lengths):
            sampling = Sampling(max_tokens=lengths[next_id][1], ignore_eos=True, seed=next_id, **load.parameters)
            engine.add(SequenceRequest(next_id, prompts[next_id], sampling, b"bench", 0))
            trace.added_s[next_id] = now
            next_id += 1
        if closed_s and not is_cut and now > closed_s + load.drain_s:
            is_cut = True
            for sequence_id in trace.added_s:
                engine.abort(sequence_id)
        if not engine.has_work:
            return closed_s, is_cut
        report = engine.step()
        _note(trace, report, engine, now, time.perf_counter() - started)


def _note(trace: _Trace, report: Any, engine: Engine, before_s: float, after_s: float) -> None:
    trace.steps.append((after_s, after_s - before_s))
    for sequence_id in report.sequence_ids[report.token_ids >= 0].tolist():
        if sequence_id in trace.last_s:
            trace.itl.append((after_s, after_s - trace.last_s[sequence_id]))
        else:
            trace.ttft.append((after_s, after_s - trace.added_s[sequence_id]))
        trace.last_s[sequence_id] = after_s
        trace.num_out += 1
    trace.num_in = engine.scheduler.num_prompt_tokens
    trace.tokens.append((after_s, trace.num_in, trace.num_out, engine.device_time.busy_us / 1e6))


def _window(trace: _Trace, in_flight: int, until_s: float) -> dict[str, Any] | None:
    """Return the rates of the steady state, or None if it is too short."""
    if len(trace.ttft) < in_flight or until_s - trace.ttft[in_flight - 1][0] < _MIN_WINDOW_S:
        return None
    from_s = trace.ttft[in_flight - 1][0]
    inside = [each for each in trace.tokens if from_s <= each[0] <= until_s]
    first, last = inside[0], inside[-1]
    seconds = last[0] - first[0]
    num_started = sum(from_s <= at <= until_s for at in trace.added_s.values())
    found = _rates(last[1] - first[1], last[2] - first[2], seconds, num_started)
    return found | {"from_s": round(from_s, 3), "until_s": round(until_s, 3),
                    "device_busy": round((last[3] - first[3]) / seconds, 4)}  # fmt: skip


def _rates(num_in: int, num_out: int, seconds: float, num_requests: int) -> dict[str, float]:
    figures = {"total": num_in + num_out, "input": num_in, "output": num_out}
    return {f"{name}_tokens_s": round(count / seconds, 1) for name, count in figures.items()} | {
        "requests_s": round(num_requests / seconds, 2)
    }


def _within(samples: list[tuple[float, float]], steady: dict[str, Any] | None) -> list[float]:
    if steady is None:
        return [took for _, took in samples]
    return [took for at, took in samples if steady["from_s"] <= at <= steady["until_s"]]


def _step_kinds(runner: Runner) -> Counter[str]:
    return Counter() if runner._steps is None else Counter(runner._steps.num_steps)


def _percentiles(samples: list[float]) -> dict[str, float]:
    values = np.percentile(np.array(samples or [0.0]) * 1000, [50, 90, 99, 100])
    return {name: round(float(value), 2) for name, value in zip(("p50", "p90", "p99", "max"), values, strict=True)}
