"""`hearth pilot`: replay a traffic profile against Hearth or any other OpenAI endpoint, and print latencies, errors,
cold starts, swaps and cost.

A profile is a file with one JSON object per line: `timestamp` in milliseconds, `input_length` and `output_length` in
tokens, and optionally `model`. Mooncake's traces have this format. Without a file, calls arrive at a steady rate.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json as json_module
import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed, JsonOption, print_json, print_rows

if TYPE_CHECKING:
    import httpx

MAX_CALLS = 100_000
MAX_CONCURRENT = 1000
TIMEOUT_S = 300.0
COLD_FACTOR = 5.0  # a first call that takes this many medians longer counts as a cold start
_WORDS_PER_TOKEN = 0.75
_DONE = "data: [DONE]"


@dataclass(frozen=True)
class PlannedCall:
    """One call of the profile; `at_s` counts from the beginning of the replay."""

    at_s: float
    model: str
    num_prompt: int
    num_output: int


@dataclass(frozen=True)
class CallOutcome:
    """The outcome of one call; times in seconds. `is_useful`: it ended with text and without an error."""

    model: str
    started_s: float
    ttft_s: float | None
    total_s: float
    num_prompt: int
    num_output: int
    error: str = ""

    @property
    def is_useful(self) -> bool:
        return not self.error and self.ttft_s is not None


def pilot(
    base_url: Annotated[str, typer.Argument(help="Base URL of the OpenAI API, ending in /v1.", show_default=False)],
    model: Annotated[
        str, typer.Option("--model", help="Comma-separated models; several take turns, which measures swaps.")
    ],
    key: Annotated[str, typer.Option("--key", envvar="OPENAI_API_KEY", help="API token.", show_default=False)] = "",
    profile: Annotated[Path | None, typer.Option("--profile", help="File of calls, *.jsonl or *.jsonl.gz.")] = None,
    calls: Annotated[int, typer.Option("--calls", min=1, max=MAX_CALLS, help="Largest number of calls.")] = 100,
    rate: Annotated[float, typer.Option("--rate", min=0.001, help="Calls per second without a profile.")] = 5.0,
    speed: Annotated[
        float, typer.Option("--speed", min=0.001, help="Factor by which a profile is replayed faster.")
    ] = 1.0,
    max_prompt: Annotated[int, typer.Option("--max-prompt", min=1, help="Longest prompt in tokens.")] = 2000,
    max_output: Annotated[int, typer.Option("--max-output", min=1, help="Longest output in tokens.")] = 100,
    input_price: Annotated[float, typer.Option("--input-price", min=0, help="USD per million prompt tokens.")] = 0.0,
    output_price: Annotated[float, typer.Option("--output-price", min=0, help="USD per million output tokens.")] = 0.0,
    json: JsonOption = False,
) -> None:
    """Replay a traffic profile and print P50, P95 and P99 of the time to the first token and of the whole call.

    Also prints errors, the cold start, the cost of swapping models, and the price of a useful response.
    """
    models = [name.strip() for name in model.split(",") if name.strip()]
    if not models:
        raise CommandFailed("--model names no model", exit_code=2)
    if not base_url.startswith(("http://", "https://")):
        raise CommandFailed("the base URL must begin with http:// or https://", exit_code=2)
    planned = steady(calls, rate, models) if profile is None else read_profile(profile, calls, speed, models)
    outcomes = asyncio.run(replay(base_url.rstrip("/"), key, limited(planned, max_prompt, max_output)))
    report = summarize(outcomes, input_price, output_price)
    if json:
        print_json(report)
        return
    figures = [{"figure": name.replace("_", " "), "value": value} for name, value in report.items() if name != "errors"]
    print_rows(figures, ("figure", "value"), is_json=False, empty="")
    if report["errors"]:
        rows = [{"error": error, "calls": number} for error, number in report["errors"].items()]
        print_rows(rows, ("error", "calls"), is_json=False, empty="")


def steady(num_calls: int, rate: float, models: Sequence[str]) -> list[PlannedCall]:
    """Return calls at a steady rate with exponential gaps, always the same ones."""
    generator = random.Random(1)  # noqa: S311 - a reproducible load
    at_s, planned = 0.0, []
    for number in range(num_calls):
        planned.append(PlannedCall(at_s, models[number % len(models)], generator.randint(20, 400), 64))
        at_s += generator.expovariate(rate)
    return planned


def read_profile(path: Path, num_calls: int, speed: float, models: Sequence[str]) -> list[PlannedCall]:
    """Return the first calls of a profile. Raises CommandFailed, naming the line that is wrong."""
    planned: list[PlannedCall] = []
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rt") as file:
            for line in file:
                if len(planned) == num_calls:
                    break
                number += 1
                planned.append(_planned(json_module.loads(line), models[len(planned) % len(models)], speed))
    except (OSError, EOFError) as error:
        raise CommandFailed(f"{path}: {error}", exit_code=2) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandFailed(f"{path}, line {number}: {error!r}", exit_code=2) from None
    if not planned:
        raise CommandFailed(f"{path} has no calls", exit_code=2)
    first_s = planned[0].at_s
    return [PlannedCall(each.at_s - first_s, each.model, each.num_prompt, each.num_output) for each in planned]


def _planned(row: dict[str, Any], model: str, speed: float) -> PlannedCall:
    at_s, num_prompt, num_output = float(row["timestamp"]), int(row["input_length"]), int(row["output_length"])
    if not math.isfinite(at_s) or num_prompt < 1 or num_output < 0:
        raise ValueError("timestamp, input_length and output_length must be numbers of at least 0, 1 and 0")
    return PlannedCall(at_s / 1000 / speed, str(row.get("model", model)), num_prompt, num_output)


def limited(planned: Iterable[PlannedCall], max_prompt: int, max_output: int) -> list[PlannedCall]:
    """Return the calls with their lengths limited."""
    return [
        PlannedCall(each.at_s, each.model, min(each.num_prompt, max_prompt), max(1, min(each.num_output, max_output)))
        for each in planned
    ]


async def replay(base_url: str, key: str, planned: Sequence[PlannedCall]) -> list[CallOutcome]:
    """Send the calls at their times, at most MAX_CONCURRENT at once, and return the outcomes in the order of the calls.

    Latency counts from the planned time: a call that waits here for others is late for its user.
    """
    import httpx

    headers = {"authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=MAX_CONCURRENT)
    started_s = time.perf_counter()
    async with httpx.AsyncClient(headers=headers, limits=limits, timeout=httpx.Timeout(TIMEOUT_S)) as client:

        async def run(number: int, call: PlannedCall) -> CallOutcome:
            await asyncio.sleep(max(0.0, started_s + call.at_s - time.perf_counter()))
            return await _send(client, base_url, number, call, started_s + call.at_s)

        return list(await asyncio.gather(*(run(number, call) for number, call in enumerate(planned))))


async def _send(client: httpx.AsyncClient, base_url: str, number: int, call: PlannedCall, due_s: float) -> CallOutcome:
    import httpx

    words = " ".join(
        f"word{number}" if index == 0 else "word" for index in range(int(call.num_prompt * _WORDS_PER_TOKEN) or 1)
    )
    body = {
        "model": call.model,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": call.num_output,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    ttft_s, error, usage = None, "", (call.num_prompt, 0)
    is_ended = False
    try:
        async with client.stream("POST", f"{base_url}/chat/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                error = f"HTTP {response.status_code}"
            else:
                async for line in response.aiter_lines():
                    if line == _DONE:
                        is_ended = True
                    elif line.startswith("data: "):
                        has_text, usage, error = _read_event(line[6:], usage, error)
                        if has_text and ttft_s is None:
                            ttft_s = time.perf_counter() - due_s
                if not is_ended and not error:
                    error = "the stream ended without [DONE]"
    except (httpx.HTTPError, httpx.InvalidURL) as failure:
        error = type(failure).__name__
    return CallOutcome(call.model, due_s, ttft_s, time.perf_counter() - due_s, *usage, error)


def _read_event(text: str, usage: tuple[int, int], error: str) -> tuple[bool, tuple[int, int], str]:
    """Return whether an event of a stream has text, the usage so far, and the error so far."""
    try:
        event = json_module.loads(text)
        if event.get("error"):
            return False, usage, "an error event in the stream"
        if event.get("usage"):
            usage = int(event["usage"]["prompt_tokens"]), int(event["usage"]["completion_tokens"])
        deltas = [choice.get("delta") or {} for choice in event.get("choices") or ()]
        return any(delta.get("content") or delta.get("reasoning_content") for delta in deltas), usage, error
    except (ValueError, KeyError, TypeError, AttributeError):
        return False, usage, "an unreadable event in the stream"


def summarize(outcomes: Sequence[CallOutcome], input_price: float, output_price: float) -> dict[str, Any]:
    """Return the figures of a replay: milliseconds, and USD for prices in USD per million tokens."""
    useful = [each for each in outcomes if each.is_useful]
    ttfts = sorted(each.ttft_s for each in useful if each.ttft_s is not None)
    totals = sorted(each.total_s for each in useful)
    cost = (
        sum(each.num_prompt * input_price + each.num_output * output_price for each in outcomes if not each.error) / 1e6
    )
    errors: dict[str, int] = {}
    for each in outcomes:
        if not each.is_useful:
            text = each.error or "no text"
            errors[text] = errors.get(text, 0) + 1
    report: dict[str, Any] = {"calls": len(outcomes), "useful": len(useful), "failed": len(outcomes) - len(useful)}
    for name, values in (("ttft", ttfts), ("total", totals)):
        report |= {f"{name}_p{percent}_ms": _percentile_ms(values, percent) for percent in (50, 95, 99)}
    return report | {
        "cold_start_ms": _cold_start_ms(useful, ttfts),
        "swap_ms": _swap_ms(useful),
        "output_tokens": sum(each.num_output for each in useful),
        "cost_usd": round(cost, 6),
        "cost_per_useful_response_usd": round(cost / len(useful), 8) if useful else None,
        "errors": errors,
    }


def _percentile_ms(ordered: Sequence[float], percent: float) -> float | None:
    if not ordered:
        return None
    return round(1000 * ordered[min(len(ordered) - 1, math.ceil(percent / 100 * len(ordered)) - 1)], 1)


def _cold_start_ms(useful: Sequence[CallOutcome], ttfts: Sequence[float]) -> float | None:
    """Return the longest first call of a model, if it took much longer than the median; None if no model was cold."""
    first: dict[str, float] = {}
    for each in sorted(useful, key=lambda each: each.started_s):
        first.setdefault(each.model, each.ttft_s or 0.0)
    longest = max(first.values(), default=0.0)
    return round(1000 * longest, 1) if ttfts and longest > COLD_FACTOR * ttfts[len(ttfts) // 2] else None


def _swap_ms(useful: Sequence[CallOutcome]) -> float | None:
    """Return how much longer the median call waits for its first token if the call before it was for another model;
    None if there were not both kinds."""
    ordered = sorted(useful, key=lambda each: each.started_s)
    swapped: list[float] = []
    stayed: list[float] = []
    for before, each in itertools.pairwise(ordered):
        (stayed if before.model == each.model else swapped).append(each.ttft_s or 0.0)
    if not swapped or not stayed:
        return None
    return round(1000 * (sorted(swapped)[len(swapped) // 2] - sorted(stayed)[len(stayed) // 2]), 1)
