"""Measure the gateway's CPU time per call with everything enabled and a mock node.

    python -m bench.gateway_cpu [--seconds 5]

Gateway, node and load generator are three processes. Measures the gateway's CPU time in all threads: plain calls at 32
connections, then 200 concurrent streams of 64 chunks every 10 ms. Prints JSON. CPU time per call is meaningful on a
busy machine too; calls per second and TTFT are not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import uvloop

from engine.protocol import events, wire
from service_identity.service_identity import ServiceIdentity
from storage.migrate import migrate
from tests.fakes.node import FakeNode, NodeSide, count_prompt
from tests.gateway.process import PARROT, cards
from tests.gateway.site import Running, Site
from tests.service_keys import service_keys

PLAIN_CONNECTIONS = 32
STREAMS = 200
CHUNKS = 64
CHUNK_GAP_S = 0.010
TICK_S = 0.001
PROMPT = "Explain in two sentences why the sky is blue and the sunset red. " * 4

S = TypeVar("S")


class StreamClocks(Generic[S]):
    """Give each stream its own clock with a period of CHUNK_GAP_S, rounded to TICK_S. `due` receives the streams whose
    turn it is and the number of chunks each has had."""

    def __init__(self, due: Callable[[dict[S, int]], None]) -> None:
        self._due = due
        self._slots: list[dict[S, int]] = [{} for _ in range(round(CHUNK_GAP_S / TICK_S))]
        self._tick = 0

    def begin(self, stream: S) -> None:
        """Register a stream that has had its first chunk."""
        self._slots[self._tick % len(self._slots)][stream] = 1

    def forget(self, stream: S) -> None:
        for slot in self._slots:
            slot.pop(stream, None)

    async def run(self) -> None:
        """Run until cancelled; late ticks are caught up."""
        loop = asyncio.get_running_loop()
        start_s = loop.time() - self._tick * TICK_S
        while True:
            self._tick += 1
            await asyncio.sleep(max(0.0, start_s + self._tick * TICK_S - loop.time()))
            slot = self._slots[self._tick % len(self._slots)]
            if slot:
                self._due(dict(slot))
                for stream, num_sent in list(slot.items()):
                    if num_sent + 1 == CHUNKS:
                        del slot[stream]
                    else:
                        slot[stream] = num_sent + 1


class QuickNode(FakeNode):
    """A node that answers unstreamed calls in one write. Texts starting with `stream` are streamed; everything due at
    one time is sent in one write, like an engine step."""

    beats: StreamClocks[tuple[NodeSide, int]]

    def respond_at_once(self, side: NodeSide, execute: wire.Execute) -> bool:
        self.executes.clear()
        call_id, prompt_tokens = execute.call_id, count_prompt(execute.task)
        if execute.task.opening_text.startswith("stream"):
            side.send(wire.Reply(call_id, events.Started(prompt_tokens)), wire.Reply(call_id, events.Token("word")))
            self.beats.begin((side, call_id))
            return True
        usage = events.Usage(prompt_tokens=prompt_tokens, completion_tokens=1)
        side.send(
            wire.Reply(call_id, events.Started(prompt_tokens)),
            wire.Reply(call_id, events.Token("A short answer.")),
            wire.Reply(call_id, events.Finished("stop", usage)),
        )
        return True

    @staticmethod
    def due(streams: dict[tuple[NodeSide, int], int]) -> None:
        """Send one token to each stream, and the end after the last one."""
        said: dict[NodeSide, list[wire.Message]] = {}
        for (side, call_id), num_sent in streams.items():
            replies = said.setdefault(side, [])
            replies.append(wire.Reply(call_id, events.Token(" word")))
            if num_sent + 1 == CHUNKS:
                usage = events.Usage(prompt_tokens=50, completion_tokens=CHUNKS)
                replies.append(wire.Reply(call_id, events.Finished("stop", usage)))
        for side, replies in said.items():
            side.send(*replies)


def node_process(folder: Path, redis_url: str) -> None:
    """Run a QuickNode until killed."""
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    models = {card.name: card.revision for card in cards()}
    keys = Path(os.environ["HEARTH_SERVICE_KEYS"])
    identity = ServiceIdentity(Path(os.environ["HEARTH_SERVICE_RING"]), keys, "node")
    node = QuickNode("quick", folder, models, identity, redis_url=redis_url)
    node.beats = StreamClocks(QuickNode.due)
    node.start()
    node.spawn(node.beats.run())
    while True:
        time.sleep(3600)


class Caller(asyncio.Protocol):
    """A keep-alive connection that repeats the same request."""

    def __init__(self, request: bytes, end: bytes) -> None:
        self._request = request
        self._end = end  # the bytes that end a response
        self._data = b""
        self._answered: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport
        self.first_s = 0.0
        self.num_chunks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if b"data: " in data:
            self.first_s = self.first_s or time.perf_counter()
            self.num_chunks += data.count(b"data: ")
        self._data = self._data[-64:] + data
        if self._data.endswith(self._end):
            assert self._answered is not None
            self._answered.set_result(None)
            self._data = b""

    async def call(self) -> float:
        """Return the seconds to the first event or to the complete response."""
        self.first_s = 0.0
        self._answered = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        self.transport.write(self._request)
        await self._answered
        return (self.first_s or time.perf_counter()) - start


def load_process(port: int, path: str, secret: str, kind: str, seconds: float) -> None:
    """Print one line of JSON: the number of calls, the duration, and the times to first output."""
    prompt = "stream " + PROMPT if kind == "stream" else PROMPT
    body = json.dumps({"messages": [], "prompt": prompt, "max_tokens": CHUNKS, "stream": kind == "stream"})
    body = body.replace('"messages": [], ', "")
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {secret}\r\ncontent-type: application/json\r\n"
    )
    request = f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()

    async def run() -> dict[str, float]:
        loop = asyncio.get_running_loop()
        end = b"0\r\n\r\n" if kind == "stream" else b'"messages":[]}'
        count = STREAMS if kind == "stream" else PLAIN_CONNECTIONS
        pairs = [await loop.create_connection(lambda: Caller(request, end), "127.0.0.1", port) for _ in range(count)]
        callers = [caller for _, caller in pairs]
        times: list[float] = []
        start = time.perf_counter()

        async def repeat(caller: Caller) -> None:
            while not times or time.perf_counter() - start < seconds:
                times.append(await caller.call())

        await asyncio.gather(*(repeat(caller) for caller in callers))
        times.sort()
        return {
            "calls": len(times),
            "wall_s": time.perf_counter() - start,
            "first_p50_ms": statistics.median(times) * 1000,
            "first_p99_ms": times[int(len(times) * 0.99)] * 1000,
            "chunks": sum(caller.num_chunks for caller in callers),
        }

    print(json.dumps(uvloop.run(run())))


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process in all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def measure(running: Running, kind: str, seconds: float) -> dict[str, float]:
    assert running.gateway.process is not None
    pid = running.gateway.process.pid
    path = f"/client/v4/accounts/{running.tenants.account_id}/ai/run/{PARROT}"
    command = [sys.executable, "-m", "bench.gateway_cpu", "load", str(running.gateway.port), path]
    before = cpu_seconds(pid)
    done = subprocess.run(
        [*command, running.tenants.secrets["good"], kind, str(seconds)], capture_output=True, check=True, text=True
    )
    outcome = json.loads(done.stdout)
    spent = cpu_seconds(pid) - before
    result = {
        "calls": outcome["calls"],
        "cpu_ms_per_call": round(spent / outcome["calls"] * 1000, 4),
        "calls_per_s": round(outcome["calls"] / outcome["wall_s"], 1),
        "first_p50_ms": round(outcome["first_p50_ms"], 2),
        "first_p99_ms": round(outcome["first_p99_ms"], 2),
        "rss_mb": round(rss_mb(pid), 1),
    }
    if kind == "stream":
        result["frames_per_s"] = round(outcome["chunks"] / outcome["wall_s"], 1)
        result["cpu_us_per_token"] = round(spent / (outcome["calls"] * CHUNKS) * 1e6, 2)
    return result


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as folder:
        template = Path(folder) / "template.db"
        asyncio.run(migrate(f"sqlite://{template}"))
        site = Site(template)
    command = [sys.executable, "-m", "bench.gateway_cpu", "node", str(site.folder), site.redis.url]
    node = subprocess.Popen(command, env=os.environ | service_keys().environ("node/quick"))
    try:
        running = Running(site, site.gateway().start())
        measure(running, "plain", 1.0)  # warm-up
        report = {kind: measure(running, kind, seconds) for kind in ("plain", "stream")}
        assert running.gateway.metric("hearth_internal_errors_total") == 0
        print(json.dumps(report, indent=2))
    finally:
        node.kill()
        node.wait()
        site.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["node"]:
        node_process(Path(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:2] == ["load"]:
        load_process(int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5], float(sys.argv[6]))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--seconds", type=float, default=5.0)
        main(parser.parse_args().seconds)
