"""The closed loop of part `offline` over HTTP, by clients on other cores. Part `http` of `bench.device`.

The event interval is the time between two events at a client, after the server has joined tokens, if it does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bench.device import closed_loop
from bench.device.figures import Sheet
from bench.device.served import Served, random_prompt, served, vocab_size_of
from bench.engine_serve import StreamResult, percentiles

IN_FLIGHT = (200, 1, 64, 400, 32, 128)  # the most important first
_PARAMETERS = {"temperature": 0.6, "top_p": 0.9}
_WARM_UP_S = 6.0


def rows() -> list[str]:
    return [f"{count} in flight" for count in IN_FLIGHT]


def run(sheet: Sheet, device: torch.device, folder: Path, seconds: float, *, is_tiny: bool) -> None:
    """Fill a sheet. A number of streams that no longer fits into the part's time is not measured."""
    counts: Sequence[int] = (4, 1) if is_tiny else IN_FLIGHT
    flags = ("--max-sequences", "8" if is_tiny else "256")
    with served(folder, device.type, max_model_len=4096, limit_s=sheet.left_s, flags=flags) as server:
        sheet.add("ready", {"seconds": round(server.ready_s, 2)})
        vocab_size, scale = vocab_size_of(folder), 0.05 if is_tiny else 1.0
        asyncio.run(_Loop(server, counts[0], vocab_size, scale).run(min(_WARM_UP_S, seconds)))
        for count in counts:
            if sheet.left_s < seconds + 3:
                sheet.headline(f"{count} in flight: not run, out of time")
                continue
            found = asyncio.run(_Loop(server, count, vocab_size, scale).run(seconds))
            sheet.add(f"{count} in flight", found)
            sheet.headline(f"{count} in flight: {found['total_tokens_s']} tokens/s")


@dataclass(eq=False)
class _Stream:
    """One request. `started_s` and the window are seconds since the start of the loop."""

    started_s: float
    num_in: int
    result: StreamResult = field(default_factory=StreamResult)

    def num_out(self, from_s: float, until_s: float, tokens_per_event: float) -> float:
        """Return the output tokens that arrived in a window."""
        events = self.result.chunk_s
        if self.result.completion_tokens and events:
            tokens_per_event = self.result.completion_tokens / len(events)
        return tokens_per_event * sum(from_s <= self.started_s + at <= until_s for at in events)

    @property
    def first_s(self) -> float:
        return self.started_s + self.result.chunk_s[0] if self.result.chunk_s else float("inf")


class _Loop:
    """`in_flight` clients that send one request after the other."""

    def __init__(self, server: Served, in_flight: int, vocab_size: int, scale: float) -> None:
        self._server, self._in_flight, self._vocab_size = server, in_flight, vocab_size
        self._lengths = iter(enumerate(closed_loop.pairs(scale)))
        self._streams: list[_Stream] = []
        self._failures: list[str] = []
        self._started_s = 0.0

    async def run(self, seconds: float) -> dict[str, Any]:
        """Return the figures of the time from the last first token of the opening burst until `seconds`, when all
        streams are cut."""
        self._started_s = time.perf_counter()
        clients = [asyncio.create_task(self._client()) for _ in range(self._in_flight)]
        server_cpu_s, own_cpu_s = self._server.cpu_s(), time.process_time()
        await asyncio.wait(clients, timeout=seconds)
        took_s = time.perf_counter() - self._started_s
        server_cpu_s, own_cpu_s = self._server.cpu_s() - server_cpu_s, time.process_time() - own_cpu_s
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        opened_s = sorted(each.first_s for each in self._streams)[min(self._in_flight, len(self._streams)) - 1]
        window_s = (opened_s, took_s) if opened_s < took_s else (0.0, took_s)
        return self._figures(*window_s) | {
            "server_cores": round(server_cpu_s / took_s, 3),
            "client_cores": round(own_cpu_s / took_s, 3),
            "failures": self._failures[:3],
            "num_failures": len(self._failures),
        }

    async def _client(self) -> None:
        for number, (num_in, num_out) in self._lengths:
            prompt = random_prompt(num_in, number, self._vocab_size)
            stream = _Stream(time.perf_counter() - self._started_s, num_in)
            self._streams.append(stream)
            try:
                await self._server.ask(prompt, num_out, stream.result, seed=number, **_PARAMETERS)
            except (ValueError, OSError) as error:
                self._failures.append(f"{type(error).__name__}: {error}"[:300])
                return

    def _figures(self, from_s: float, until_s: float) -> dict[str, Any]:
        done = [each.result for each in self._streams if each.result.completion_tokens]
        events = sum(len(each.chunk_s) for each in done)
        per_event = sum(each.completion_tokens for each in done) / events if events else 1.0
        num_in = sum(each.num_in for each in self._streams if from_s <= each.first_s <= until_s)
        num_out = sum(each.num_out(from_s, until_s, per_event) for each in self._streams)
        inside = [each for each in self._streams if from_s <= each.first_s <= until_s] or self._streams
        gaps = [b - a for each in inside for a, b in zip(each.result.chunk_s, each.result.chunk_s[1:], strict=False)]
        seconds = until_s - from_s
        return {
            "from_s": round(from_s, 2), "until_s": round(until_s, 2), "requests": len(done),
            "total_tokens_s": round((num_in + num_out) / seconds, 1), "output_tokens_s": round(num_out / seconds, 1),
            "tokens_per_event": round(per_event, 3),
            "ttft_ms": percentiles([each.result.chunk_s[0] for each in inside if each.result.chunk_s]),
            "event_interval_ms": percentiles(gaps),
        }  # fmt: skip
