"""Compare the gateway with LiteLLM and Portkey over the same mock upstream: CPU per call, calls/s, added latency.

    python -m bench.gateway [--litellm PYTHON] [--portkey FOLDER] [--seconds 3] [--rounds 1] [--kinds …]

PYTHON is the interpreter of an environment with `litellm[proxy]`, FOLDER one in which `npm install @portkey-ai/gateway`
was run (needs `node`). Without them, only Hearth and the mock are measured. Chat completions, whole and in streams of
64 chunks every 10 ms, at 1, 32 and 200 connections. Streams start evenly spread over the length of one stream; with
`at_once` they all start together. The server has one core, everything else the others. Hearth runs with authentication,
limits in Redis, catalog, routing, metering and access log; LiteLLM with a key and no database; Portkey without a key.
CPU is the server's own time in all threads. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import uvloop

from bench.gateway_cpu import CHUNK_GAP_S, CHUNKS, PROMPT, StreamClocks, cpu_seconds, rss_mb
from bench.platform_under_test import free_port, machine
from storage.migrate import migrate
from tests.gateway.process import PARROT
from tests.gateway.site import Running, Site
from tests.service_keys import service_keys

KINDS = ("plain_1", "plain_32", "plain_200", "stream_1", "stream_32", "stream_200", "stream_200_at_once")
LIMITS = (
    "account=100000000/60, account.tokens=10000000000/60, token=100000000/300, text-generation=100000000/60, "
    "account.calls=100000"
)
START_TIMEOUT_S = 90.0

_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "mock",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "A short answer."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 50, "completion_tokens": 1, "total_tokens": 51},
}


def _chunk(delta: dict[str, str], reason: str | None = None) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "mock"}
    event = json.dumps(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    data = f"data: {event}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


_BODY = json.dumps(_ANSWER).encode()
_WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_FIRST, _NEXT = _chunk({"role": "assistant", "content": "word"}), _chunk({"content": " word"})
_LAST = _chunk({}, "stop") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Upstream(asyncio.Protocol):
    """An OpenAI server that responds immediately, or streams with an individual clock per stream."""

    beats: ClassVar[StreamClocks[Upstream]]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._data = b""

    def connection_lost(self, _exc: Exception | None) -> None:
        self.beats.forget(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end or len(body) < _length_in(head):
            return
        self._data = b""
        if b'"stream":true' in body.replace(b" ", b""):
            self._transport.write(_HEAD + _FIRST)
            self.beats.begin(self)
        else:
            self._transport.write(_WHOLE)

    @staticmethod
    def due(streams: dict[Upstream, int]) -> None:
        """Send one chunk to each stream, and the end with the last one."""
        for side, num_sent in streams.items():
            side._transport.write(_NEXT + _LAST if num_sent + 1 == CHUNKS else _NEXT)


def _length_in(head: bytes) -> int:
    """Return the content length in a response head, or 0."""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


def upstream_process(port: int) -> None:
    """Run until killed."""

    async def run() -> None:
        Upstream.beats = StreamClocks(Upstream.due)
        await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port)
        await Upstream.beats.run()

    uvloop.run(run())


class ResponseReader:
    """Split the bytes of a connection into responses and count the events of each."""

    def __init__(self) -> None:
        self._data = b""
        self._left: int | None = None  # remaining bytes of the body; None for chunked bodies
        self._has_head = False
        self.status = 0
        self.num_events = 0

    def feed(self, data: bytes) -> bool:
        """Return True if the response ends in `data`."""
        self._data += data
        if not self._has_head:
            head, end, tail = self._data.partition(b"\r\n\r\n")
            if not end:
                return False
            self._has_head, self._data = True, tail
            self.status = int(head[9:12])
            is_chunked = b"transfer-encoding: chunked" in head.lower()
            self._left = None if is_chunked else _length_in(head)
        else:
            tail = data
        if self._left is not None:
            self._left -= len(tail)
            self._data = b""
            return self._ended(self._left <= 0)
        self.num_events += self._data.count(b"data: ")
        has_ended = self._data.endswith(b"0\r\n\r\n")
        self._data = self._data[-5:]  # keeps the longest marker that may be split between two reads
        return self._ended(has_ended)

    def _ended(self, has_ended: bool) -> bool:
        if has_ended:
            self._data, self._has_head = b"", False
        return has_ended


class Caller(asyncio.Protocol):
    """A keep-alive connection that repeats the same request."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._reader = ResponseReader()
        self._answered: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport
        self.first_s = 0.0

    @property
    def num_events(self) -> int:
        return self._reader.num_events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        had = self._reader.num_events
        has_ended = self._reader.feed(data)
        if not self.first_s and self._reader.num_events > had:
            self.first_s = time.perf_counter()
        assert self._answered is not None
        if self._reader.status not in (0, 200) and not self._answered.done():
            self._answered.set_exception(ConnectionError(f"answered {self._reader.status}: {data[:600]!r}"))
        elif has_ended and not self._answered.done():
            self._answered.set_result(None)

    async def call(self) -> float:
        """Return the seconds to the first event or to the complete response."""
        self.first_s = 0.0
        self._answered = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        self.transport.write(self._request)
        await self._answered
        return (self.first_s or time.perf_counter()) - start


def load_process(case: dict[str, Any]) -> None:
    """Print one line of JSON: the number of calls, the duration, and the times to first output."""
    is_stream, count, seconds = case["is_stream"], case["connections"], case["seconds"]
    content = ("stream " if is_stream else "") + PROMPT
    body = json.dumps(
        {
            "model": case["model"],
            "messages": [{"role": "user", "content": content}],
            "max_tokens": CHUNKS,
            "stream": is_stream,
        }
    )
    heads = {"host": "bench", "content-type": "application/json", "content-length": str(len(body))} | case["headers"]
    lines = "".join(f"{name}: {value}\r\n" for name, value in heads.items())
    request = f"POST {case['path']} HTTP/1.1\r\n{lines}\r\n{body}".encode()

    async def run() -> dict[str, float]:
        loop = asyncio.get_running_loop()
        pairs = [await loop.create_connection(lambda: Caller(request), "127.0.0.1", case["port"]) for _ in range(count)]
        callers = [caller for _, caller in pairs]
        times: list[float] = []
        start = time.perf_counter()

        async def repeat(caller: Caller, after_s: float) -> None:
            await asyncio.sleep(after_s)
            while True:
                times.append(await caller.call())
                if time.perf_counter() - start >= seconds:
                    return

        if case["at_once"]:
            while time.perf_counter() - start < seconds:
                times += await asyncio.gather(*(caller.call() for caller in callers))
        else:
            spread_s = CHUNKS * CHUNK_GAP_S / count if is_stream else 0.0
            await asyncio.gather(*(repeat(caller, i * spread_s) for i, caller in enumerate(callers)))
        times.sort()
        return {
            "calls": len(times),
            "wall_s": time.perf_counter() - start,
            "p50_ms": statistics.median(times) * 1000,
            "p99_ms": times[int(len(times) * 0.99)] * 1000,
            "events": sum(caller.num_events for caller in callers),
        }

    print(json.dumps(uvloop.run(run())))


@dataclass
class Target:
    """A server under test."""

    name: str
    port: int
    path: str
    model: str
    pid: int
    headers: dict[str, str] = field(default_factory=dict)


def pin(pid: int, cores: set[int]) -> None:
    """Pin every thread of a process to these cores; new threads inherit the setting."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


@functools.cache
def cores() -> tuple[set[int], set[int]]:
    """Return the server's core and the cores of everything else, as they were at the first call: the caller is pinned
    afterwards."""
    found = sorted(os.sched_getaffinity(0))
    return ({found[0]}, set(found[1:])) if len(found) > 1 else (set(found), set(found))


def measure(
    target: Target, is_stream: bool, connections: int, seconds: float, *, at_once: bool = False
) -> dict[str, Any]:
    """Measure one kind of load. If a peer responds unexpectedly, return what it sent."""
    request = {
        "port": target.port, "path": target.path, "model": target.model, "headers": target.headers,
        "is_stream": is_stream, "connections": connections, "seconds": seconds, "at_once": at_once,
    }  # fmt: skip
    before = cpu_seconds(target.pid)
    command = [sys.executable, "-m", "bench.gateway", "load", json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        if target.name == "hearth":
            raise SystemExit(f"{target.name}, {connections} connections: {done.stderr[-800:]}")
        return {"error": done.stderr.strip().splitlines()[-1][:300]}
    outcome = json.loads(done.stdout)
    spent = cpu_seconds(target.pid) - before
    result: dict[str, Any] = {
        "calls_per_s": round(outcome["calls"] / outcome["wall_s"], 1),
        "cpu_ms": round(spent / outcome["calls"] * 1000, 3),
        "p50_ms": round(outcome["p50_ms"], 2),
        "p99_ms": round(outcome["p99_ms"], 2),
    }
    if is_stream:
        result["events_per_s"] = round(outcome["events"] / outcome["wall_s"], 1)
        result["tokens_per_s"] = round(outcome["calls"] * CHUNKS / outcome["wall_s"], 1)
    return result


def figures(target: Target, seconds: float, kinds: Collection[str]) -> dict[str, Any]:
    """Return the figures of each kind of load, and the memory at the end."""
    measure(target, False, 4, 1.0)  # warm-up
    found: dict[str, Any] = {}
    for kind in kinds:
        name, _, tail = kind.partition("_")
        connections, _, mode = tail.partition("_")
        found[kind] = measure(target, name == "stream", int(connections), seconds, at_once=bool(mode))
    found["rss_mb"] = round(rss_mb(target.pid), 1)
    return found


@contextlib.contextmanager
def hearth() -> Iterator[Target]:
    """Start a gateway with a mock node."""
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as folder:
        template = Path(folder) / "template.db"
        asyncio.run(migrate(f"sqlite://{template}"))
        site = Site(template)
    node = subprocess.Popen(
        [sys.executable, "-m", "bench.gateway_cpu", "node", str(site.folder), site.redis.url],
        env=os.environ | service_keys().environ("node/quick"),
    )
    try:
        running = Running(site, site.gateway(HEARTH_RATE_LIMITS=LIMITS).start())
        assert running.gateway.process is not None
        pid = running.gateway.process.pid
        pin(pid, cores()[0])
        path = f"/client/v4/accounts/{running.tenants.account_id}/ai/v1/chat/completions"
        yield Target("hearth", running.gateway.port, path, PARROT, pid, running.headers())
        assert running.gateway.metric("hearth_internal_errors_total") == 0
    finally:
        node.kill()
        node.wait()
        site.close()


@contextlib.contextmanager
def server(command: list[str], port: int, folder: Path) -> Iterator[int]:
    """Start a peer's process; yield its process id once it listens."""
    log = (folder / "peer.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        end = time.monotonic() + START_TIMEOUT_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{command[0]} did not start: {(folder / 'peer.log').read_text()[-800:]}")
            time.sleep(0.1)
        pin(process.pid, cores()[0])
        yield process.pid
    finally:
        process.kill()
        process.wait()
        log.close()


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def litellm(python: Path, upstream_port: int) -> Iterator[Target]:
    """Start LiteLLM's proxy with one worker and a key."""
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as name:
        folder, port = Path(name), free_port()
        base = f"http://127.0.0.1:{upstream_port}/v1"
        (folder / "config.yaml").write_text(
            "model_list:\n  - model_name: mock\n    litellm_params:\n"
            f"      model: openai/mock\n      api_base: {base}\n      api_key: none\n"
            "general_settings:\n  master_key: sk-bench\n"
        )
        executable = str(python.parent / "litellm")
        command = [executable, "--config", "config.yaml", "--port", str(port), "--num_workers", "1"]
        with server(command, port, folder) as pid:
            headers = {"authorization": "Bearer sk-bench"}
            yield Target("litellm", port, "/v1/chat/completions", "mock", pid, headers)


@contextlib.contextmanager
def portkey(installed: Path, upstream_port: int) -> Iterator[Target]:
    """Start Portkey's gateway; requests name the upstream in headers."""
    node = shutil.which("node")
    if node is None:
        raise SystemExit("--portkey needs node on PATH")
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as name:
        port = free_port()
        start = (installed / "node_modules/@portkey-ai/gateway/build/start-server.js").resolve()
        with server([node, str(start), f"--port={port}", "--headless"], port, Path(name)) as pid:
            headers = {
                "authorization": "Bearer none",
                "x-portkey-provider": "openai",
                "x-portkey-custom-host": f"http://127.0.0.1:{upstream_port}/v1",
            }
            yield Target("portkey", port, "/v1/chat/completions", "mock", pid, headers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--litellm", type=Path, help="python of an environment with litellm[proxy]")
    parser.add_argument("--portkey", type=Path, help="folder where @portkey-ai/gateway is installed")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--kinds", default=",".join(KINDS), help="which loads, with commas between")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if not set(kinds) <= set(KINDS):
        parser.error(f"--kinds are {', '.join(KINDS)}")
    os.sched_setaffinity(0, cores()[1])
    port = free_port()
    mock = subprocess.Popen([sys.executable, "-m", "bench.gateway", "upstream", str(port)])
    report: dict[str, list[Any]] = {}
    try:
        while not _listens(port):
            time.sleep(0.05)
        itself = Target("upstream", port, "/v1/chat/completions", "mock", mock.pid)
        for _ in range(options.rounds):
            report.setdefault("upstream", []).append(figures(itself, min(options.seconds, 1.0), kinds))
            targets = [hearth()]
            if options.portkey:
                targets.append(portkey(options.portkey, port))
            if options.litellm:
                targets.append(litellm(options.litellm, port))
            for opened in targets:
                with opened as target:
                    report.setdefault(target.name, []).append(figures(target, options.seconds, kinds))
    finally:
        mock.kill()
        mock.wait()
    print(json.dumps({"bench": "gateway", "limits": LIMITS, **report, **machine()}, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        load_process(json.loads(sys.argv[2]))
    elif sys.argv[1:2] == ["upstream"]:
        upstream_process(int(sys.argv[2]))
    else:
        main()
