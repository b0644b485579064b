"""Measure the CPU time of node front and gateway per streamed token, with and without token coalescing.

    python -m bench.stream_cpu [--step-ms 16] [--streams 200] [--seconds 5] [--rounds 3] [--coalesce-ms 0,25]

Real gateway and node front (connection, calls, detokenizer, replica). The rank is replaced by a process that sends one
token to each sequence every `--step-ms`, as a GPU does. Settings take turns; prints JSON with the median of the rounds.
CPU time per token is meaningful on a busy machine too; times to the first event are less so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from bench.engine_serve import percentiles
from bench.gateway_cpu import cpu_seconds
from bench.platform_under_test import machine
from engine.config import EngineConfig
from engine.node.gateway_server import GatewayServer
from engine.processes.frames import FrameReader
from engine.processes.zygote import Zygote
from engine.ranks import wire
from engine.ranks.replica import Replica
from engine.report import LENGTH, RUNNING, EngineInfo, EngineStatus, StepReport
from engine.serving.addresses import parse_address
from engine.serving.calls import Calls
from engine.serving.model_store import LocalModel
from engine.serving.replicas import Replicas
from engine.tasks.text_generation import TextGenerator
from engine.tasks.token_coalescer import TokenCoalescer
from engine.text.tokenizer import Tokenizer
from service_identity.service_identity import ServiceIdentity
from storage.migrate import migrate
from tests.fakes.checker import FakeChecker
from tests.fakes.node import FakeNode
from tests.fakes.task_models import FakeStore
from tests.gateway.process import PARROT, cards
from tests.gateway.site import Running, Site
from tests.service_keys import service_keys

SPARK = Path("catalog/builtin/spark")
TOKENS = 192  # tokens per stream
READY = b"ready\n"
STEP_VARIABLE = "BENCH_STEP_MS"
PROMPT = "Explain in two sentences why the sky is blue and the sunset red. " * 4
WORDS = " the river runs past an old stone mill where seven lamps burn all night"


def paced_rank(connection: socket.socket, _arguments: bytes) -> None:
    """Entry point of the rank process: one token for each sequence in every step."""
    step_s, token_ids = float(os.environ[STEP_VARIABLE]) / 1000, Tokenizer(SPARK).encode(WORDS)
    info = EngineInfo(
        max_model_len=2048, vocab_size=8192, eos_token_ids=(0,), num_blocks=1 << 16, block_size=16, layout_tag="paced"
    )
    connection.sendall(wire.encode_frame(wire.Loaded(info, EngineStatus())))
    connection.setblocking(False)
    reader, tokens_left = FrameReader(), dict[int, int]()
    for step in itertools.count(1):
        with contextlib.suppress(BlockingIOError):
            while data := connection.recv(1 << 20):
                for work in map(wire.decode_to_rank, reader.feed(data)):
                    assert isinstance(work, wire.Work)
                    tokens_left |= {request.sequence_id: TOKENS for request in map(wire.decode_request, work.adds)}
                    for sequence_id in work.aborts:
                        tokens_left.pop(sequence_id, None)
            return
        if tokens_left:
            connection.setblocking(True)
            connection.sendall(wire.encode_report(_step(tokens_left, token_ids[step % len(token_ids)]), EngineStatus()))
            connection.setblocking(False)
        time.sleep(step_s - time.monotonic() % step_s)


def _step(tokens_left: dict[int, int], token_id: int) -> StepReport:
    """Return the report of a step, and count its tokens."""
    count = len(tokens_left)
    ids = np.fromiter(tokens_left, np.int64, count)
    is_last = np.fromiter(tokens_left.values(), np.int32, count) == 1
    for sequence_id in ids.tolist():
        tokens_left[sequence_id] -= 1
        if not tokens_left[sequence_id]:
            del tokens_left[sequence_id]
    return StepReport(
        ids,
        np.full(count, token_id, np.int32),
        np.where(is_last, LENGTH, RUNNING).astype(np.uint8),
        np.zeros(count, np.int32),
        device_us=np.ones(count, np.int64),
    )


class PacedLoaders:
    """Loads a text generator over a paced rank."""

    def __init__(self, coalesce_ms: int) -> None:
        self._coalescer = TokenCoalescer(coalesce_ms / 1000)

    async def load(self, model: LocalModel, on_exit: Callable[[str], None], kv_bytes: int = 0) -> TextGenerator:  # noqa: ARG002
        config = EngineConfig(model_dir=SPARK)
        zygote = Zygote()
        await zygote.start()
        replica = await Replica.start(zygote, config, model.revision, on_exit, entry="bench.stream_cpu:paced_rank")
        return TextGenerator(replica, Tokenizer(SPARK), FakeChecker(), coalescer=self._coalescer)


async def serve_front(folder: Path, redis_url: str, coalesce_ms: int) -> None:
    """Run the front of a node until killed. A fake node publishes its address."""
    identity = ServiceIdentity(Path(os.environ["HEARTH_SERVICE_RING"]), Path(os.environ["HEARTH_SERVICE_KEYS"]), "node")
    replicas = Replicas(FakeStore(), PacedLoaders(coalesce_ms), 1)
    server = GatewayServer(Calls(replicas, 4096), identity, "paced", None, lambda _change: "")
    await server.open(parse_address(f"unix://{folder}/front.sock"))
    card = next(card for card in cards() if card.name == PARROT)
    replicas.release(await replicas.acquire(card.name, card.revision, "text-generation", 60.0))
    publisher = FakeNode("paced", folder, {card.name: card.revision}, identity, redis_url=redis_url)
    publisher.announced = server.address
    publisher.start()
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    await asyncio.Event().wait()


class Client(asyncio.Protocol):
    """A keep-alive connection that repeats one streamed request and notes when its events arrive."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._tail = b""
        self._is_answered: asyncio.Future[None]
        self._transport: asyncio.Transport
        self.times_s: list[float] = []
        self.num_events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports do not inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        if b"data: " in data:
            self.times_s.append(time.perf_counter())
            self.num_events += data.count(b'"response":"') - data.count(b'"response":""')
        self._tail = self._tail[-8:] + data
        if self._tail.endswith(b"0\r\n\r\n"):
            self._is_answered.set_result(None)
            self._tail = b""

    async def call(self) -> tuple[float, list[float]]:
        """Return the seconds to the first event, and those between events."""
        self.times_s = []
        self._is_answered = asyncio.get_running_loop().create_future()
        started_s = time.perf_counter()
        self._transport.write(self._request)
        await self._is_answered
        return self.times_s[0] - started_s, [b - a for a, b in itertools.pairwise(self.times_s)]


async def load(port: int, path: str, secret: str, num_streams: int, seconds: float) -> dict[str, Any]:
    """Repeat streams for `seconds`, and return what the clients saw."""
    body = json.dumps({"prompt": PROMPT, "max_tokens": TOKENS, "stream": True})
    head = f"POST {path} HTTP/1.1\r\nhost: b\r\nauthorization: Bearer {secret}\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()
    loop = asyncio.get_running_loop()
    opened = [await loop.create_connection(lambda: Client(request), "127.0.0.1", port) for _ in range(num_streams)]
    clients = [client for _, client in opened]
    first_s: list[float] = []
    gaps_s: list[float] = []
    end_s = time.perf_counter() + seconds

    async def repeat(client: Client, delay_s: float) -> None:
        await asyncio.sleep(delay_s)  # streams begin at different times
        while time.perf_counter() < end_s:
            first, gaps = await client.call()
            first_s.append(first)
            gaps_s.extend(gaps)

    await asyncio.gather(*(repeat(client, number / num_streams) for number, client in enumerate(clients)))
    num_events = sum(client.num_events for client in clients)
    return {
        "tokens": len(first_s) * TOKENS,
        "tokens_per_event": round(len(first_s) * TOKENS / num_events, 3),
        "ttft_ms": percentiles(first_s),
        "event_interval_ms": percentiles(gaps_s),
    }


@dataclass(frozen=True)
class Target:
    """A gateway and a node front with one setting."""

    running: Running
    pids: dict[str, int]

    def load(self, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
        """Run the clients in a process of their own, and return what they saw."""
        port, tenants = str(self.running.gateway.port), self.running.tenants
        path = f"/client/v4/accounts/{tenants.account_id}/ai/run/{PARROT}"
        command = [sys.executable, "-m", "bench.stream_cpu", "load", port, path, tenants.secrets["good"]]
        done = subprocess.run([*command, str(options.streams), str(seconds)], stdout=subprocess.PIPE, check=True)
        return dict(json.loads(done.stdout))

    def measure(self, options: argparse.Namespace) -> dict[str, Any]:
        before = {name: cpu_seconds(pid) for name, pid in self.pids.items()}
        seen = self.load(options, options.seconds)
        spent = {name: cpu_seconds(pid) - before[name] for name, pid in self.pids.items()}
        assert self.running.gateway.metric("hearth_internal_errors_total") == 0
        micros = {f"{name}_us_per_token": round(value / seen["tokens"] * 1e6, 2) for name, value in spent.items()}
        return {**micros, "us_per_token": round(sum(micros.values()), 2), **seen}


@contextlib.contextmanager
def target(template: Path, coalesce_ms: int, step_ms: float) -> Iterator[Target]:
    """Run a gateway and a node front with this setting."""
    site = Site(template)
    command = [sys.executable, "-m", "bench.stream_cpu", "front", str(site.folder), site.redis.url, str(coalesce_ms)]
    environ = os.environ | service_keys().environ("node/paced") | {STEP_VARIABLE: str(step_ms)}
    front = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)
    try:
        assert front.stdout is not None
        assert front.stdout.readline() == READY, "the front did not start"
        running = Running(site, site.gateway().start())
        assert running.gateway.process is not None
        yield Target(running, {"front": front.pid, "gateway": running.gateway.process.pid})
    finally:
        front.kill()
        front.wait()
        site.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", type=float, default=16.0)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--coalesce-ms", default="0,25", help="settings to compare")
    options = parser.parse_args()
    settings = [int(each) for each in options.coalesce_ms.split(",")]
    runs: dict[int, list[dict[str, Any]]] = {each: [] for each in settings}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hearth-bench-"))
        template = Path(folder) / "template.db"
        asyncio.run(migrate(f"sqlite://{template}"))
        targets = {each: stack.enter_context(target(template, each, options.step_ms)) for each in settings}
        for each in targets.values():
            each.load(options, 1.0)  # warm-up
        for _ in range(options.rounds):
            for coalesce_ms, each in targets.items():
                runs[coalesce_ms].append(each.measure(options))
                print(json.dumps({"coalesce_ms": coalesce_ms, **runs[coalesce_ms][-1]}), file=sys.stderr)
    for coalesce_ms, found in runs.items():
        medians = {name: _median([run[name] for run in found]) for name in found[0]}
        given = vars(options) | {"coalesce_ms": coalesce_ms}
        print(json.dumps({"bench": "stream_cpu", **given, **medians, **machine()}))


def _median(values: list[Any]) -> Any:
    """Return the median of numbers, or of each of their percentiles."""
    if isinstance(values[0], dict):
        return {name: _median([each[name] for each in values]) for name in values[0]}
    return statistics.median(values)


if __name__ == "__main__":
    if sys.argv[1:2] == ["front"]:
        uvloop.run(serve_front(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
    elif sys.argv[1:2] == ["load"]:
        port, path, secret, num_streams, seconds = sys.argv[2:]
        print(json.dumps(uvloop.run(load(int(port), path, secret, int(num_streams), float(seconds)))))
    else:
        main()
