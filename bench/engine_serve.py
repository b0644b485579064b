"""Load an OpenAI-compatible server with streams: tokens/s, time to first token, time between tokens.

    python -m engine serve MODEL_DIR --port 8000 &
    python -m bench.engine_serve --url http://127.0.0.1:8000 [--streams 16] [--requests 64] [--prompt-tokens 128]

Closed loop: when a stream ends, the next request starts. Works with any server that has /v1/completions, including
vLLM. The client reads its sockets itself, because an HTTP library would use much of a small machine's CPU. Prompts are
random, so prefix caches have no effect; with `--vocab-size` they are token ids of the exact length. The time between
chunks is the time between tokens only if the server coalesces nothing (`--coalesce-ms 0`).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.platform_under_test import machine

WORDS = "the river runs past an old stone mill where seven lamps burn all night and nobody asks who lit them".split()
CHUNK = b"data: {"
DONE = b"data: [DONE]"


@dataclass
class StreamResult:
    """The result of one stream: seconds at which its chunks arrived, and its usage."""

    chunk_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    end_s: float = 0.0


class StreamReader:
    """Find the chunks in the bytes of a stream, wherever they are split. Usage chunks are not counted."""

    def __init__(self) -> None:
        self.is_done = False
        self.usage: dict[str, int] = {}
        self._rest = b""

    def feed(self, data: bytes) -> int:
        """Return the number of chunks with a choice that ended in `data`. Raises ValueError for an error in the
        stream."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        count = 0
        for line in lines:
            if line.startswith(CHUNK):
                if b'"choices":[]' in line or b'"choices": []' in line:
                    self.usage = json.loads(line[len(b"data: ") :])["usage"]
                elif b'"error"' in line and b'"choices"' not in line:
                    raise ValueError(line.decode())
                else:
                    count += 1
            elif line.startswith(DONE):
                self.is_done = True
        return count


async def ask(
    url: urllib.parse.SplitResult, body: dict[str, Any], headers: str, response: StreamResult | None = None
) -> StreamResult:
    """Read one stream to its end, into `response` if it is given. Raises ValueError if the stream is incomplete."""
    content = json.dumps(body).encode()
    head = f"POST {url.path}/v1/completions HTTP/1.1\r\nhost: {url.netloc}\r\nconnection: close\r\n{headers}"
    head += f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    response, stream = response or StreamResult(), StreamReader()
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection(url.hostname, url.port or 80)
    try:
        writer.write(head.encode() + content)
        status = await reader.readuntil(b"\r\n\r\n")
        if not status.startswith(b"HTTP/1.1 200"):
            raise ValueError((status + await reader.read(4096)).decode(errors="replace"))
        while not stream.is_done and (data := await reader.read(1 << 16)):
            now = time.perf_counter() - started
            response.chunk_s += [now] * stream.feed(data)
    finally:
        writer.close()
    if not stream.is_done or not stream.usage:
        raise ValueError("a stream ended without [DONE] or without usage")
    response.end_s = time.perf_counter() - started
    response.prompt_tokens = stream.usage["prompt_tokens"]
    response.completion_tokens = stream.usage["completion_tokens"]
    return response


def bodies(options: argparse.Namespace, seed: int) -> Iterator[dict[str, Any]]:
    """Yield an endless sequence of requests, each with its own prompt."""
    choose = random.Random(seed)
    while True:
        prompt: Any
        if options.vocab_size:
            prompt = [
                choose.randrange(options.vocab_size // 10, options.vocab_size) for _ in range(options.prompt_tokens)
            ]
        else:
            prompt = " ".join(choose.choice(WORDS) for _ in range(options.prompt_tokens))
        yield {
            "model": options.model,
            "prompt": prompt,
            "max_tokens": options.new_tokens,
            "temperature": options.temperature,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


async def run(options: argparse.Namespace, num_requests: int, seed: int) -> tuple[list[StreamResult], float]:
    """Return all results and the total time in seconds."""
    url = urllib.parse.urlsplit(options.url)
    headers = f"authorization: Bearer {options.api_key}\r\n" if options.api_key else ""
    waiting = itertools.islice(bodies(options, seed), num_requests)
    responses: list[StreamResult] = []

    async def run_sequentially() -> None:
        for body in waiting:
            responses.append(await ask(url, body, headers))

    started = time.perf_counter()
    await asyncio.gather(*(run_sequentially() for _ in range(min(options.streams, num_requests))))
    return responses, time.perf_counter() - started


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p99 and the maximum in milliseconds."""
    ordered = sorted(values) or [0.0]
    at = {f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 90, 99)}
    return {name: round(value * 1000, 2) for name, value in (at | {"max": ordered[-1]}).items()}


def figures(results: Sequence[StreamResult], seconds: float) -> dict[str, Any]:
    """Return the figures of a run. ITL is the time between two chunks, TPOT the mean time per token after the first."""
    num_generated = sum(response.completion_tokens for response in results)
    num_prompt = sum(response.prompt_tokens for response in results)
    gaps = [late - early for response in results for early, late in itertools.pairwise(response.chunk_s)]
    per_token = [(a.chunk_s[-1] - a.chunk_s[0]) / (a.completion_tokens - 1) for a in results if a.completion_tokens > 1]
    return {
        "seconds": round(seconds, 3),
        "requests_per_s": round(len(results) / seconds, 3),
        "output_tokens_per_s": round(num_generated / seconds, 1),
        "total_tokens_per_s": round((num_prompt + num_generated) / seconds, 1),
        "mean_prompt_tokens": round(num_prompt / len(results), 1),
        "mean_output_tokens": round(num_generated / len(results), 1),
        "ttft_ms": percentiles([response.chunk_s[0] for response in results]),
        "itl_ms": percentiles(gaps),
        "tpot_ms": percentiles(per_token),
        "e2e_ms": percentiles([response.end_s for response in results]),
    }


def served_model(url: str, api_key: str) -> str:
    """Return the first model that the server lists."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/models", headers=headers), timeout=10) as response:
        return str(json.load(response)["data"][0]["id"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="", help="the first that the server lists")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--requests", type=int, default=0, help="four for each stream")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="words, unless --vocab-size is given")
    parser.add_argument("--vocab-size", type=int, default=0)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    options.url = options.url.rstrip("/")
    options.requests = options.requests or 4 * options.streams
    options.model = options.model or served_model(options.url, options.api_key)
    asyncio.run(run(options, min(2, options.requests), seed=0))  # warm-up, not counted
    request = {name: value for name, value in vars(options).items() if name != "api_key"}
    for number in range(1, options.rounds + 1):
        responses, seconds = asyncio.run(run(options, options.requests, seed=number))
        print(
            json.dumps(
                {"bench": "engine_serve", "round": number, **request, **figures(responses, seconds), **machine()}
            )
        )


if __name__ == "__main__":
    main()
