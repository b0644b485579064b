"""Measure what one open dashboard of a large fleet costs a gateway, with simulated nodes.

    python -m bench.fleet [--nodes 1000] [--replicas 5] [--seconds 20] [--rounds 3]

One process simulates the nodes: each accepts the gateway's connection and publishes a changed status to Redis every
second. The gateway's CPU time is measured in turn without and with a dashboard, which follows all events and reads the
metric summary every 10 seconds. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import statistics
import threading
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import cast

import httpx
import msgspec
import uvloop

from engine.protocol import wire
from engine.protocol.status import NodeStatus, ReplicaStatus
from gateway.nodes.known_pops import KNOWN_POPS
from service_identity import key_ring
from service_identity.service_identity import ServiceIdentity
from service_identity.service_tokens import Ring
from storage.ephemeral import Ephemeral
from storage.migrate import migrate
from tests.fakes.node import FakeNode, NodeSide
from tests.gateway.browser_session import session_headers
from tests.gateway.site import Running, Site
from tests.service_keys import ServiceKeys, service_keys

SUMMARY_PERIOD_S = 10.0
START_TIMEOUT_S = 120.0


class SimulatedNode:
    """The part of a fake node that `NodeSide` uses, with a status that changes at every call."""

    def __init__(self, node_id: str, pop: str, address: str, identity: ServiceIdentity, num_replicas: int) -> None:
        self.node_id, self.pop, self.address, self.identity = node_id, pop, address, identity
        self.connections: set[NodeSide] = set()
        self.executes: list[wire.Execute] = []
        self.is_deaf = False
        self._models = [(f"@cf/simulated/model-{number}", f"{number:064x}") for number in range(num_replicas)]

    def status(self) -> bytes:
        replicas = tuple(self._replica(model, revision) for model, revision in self._models)
        return msgspec.json.encode(
            NodeStatus(
                node_id=self.node_id, pop=self.pop, address=self.address, replicas=replicas, version="0.0",
                num_calls=random.randrange(200), device="cuda", device_name="NVIDIA H200", memory_bytes=141 << 30,
                started_s=1_790_000_000,
            )
        )  # fmt: skip

    def _replica(self, model: str, revision: str) -> ReplicaStatus:
        numbers = random.sample(range(1, 10_000), 8)
        return ReplicaStatus(
            model=model, revision=revision, state="ready", num_running=numbers[0], num_waiting=numbers[1],
            queued_tokens=numbers[2], num_blocks=20_000, num_free_blocks=numbers[3], num_cached_blocks=numbers[4],
            num_steps=numbers[5], busy_us=numbers[6], busy_ratio=0.5, weight_bytes=16 << 30, kv_bytes=8 << 30,
            num_prompt_tokens=10_000, num_cached_tokens=numbers[7],
        )  # fmt: skip


def node_ids(number: int) -> list[str]:
    return [f"sim-{index:04d}" for index in range(number)]


def add_keys(keys: ServiceKeys, ids: list[str]) -> None:
    """Make a service key for every node, in one change of the ring."""
    rows = []
    for node_id in ids:
        private = key_ring.generate()
        subject = f"node/{node_id}"
        key_ring.write_private_key(keys.folder(subject), private)
        half = key_ring.public_half(private)
        rows.append(key_ring.public_key(half, subject, start_s=time.time(), life_days=1))

    def with_all(ring: Ring) -> Ring:
        for row in rows:
            ring = key_ring.with_key(ring, row)
        return ring

    keys.change(with_all)


def simulate(ids: list[str], folder: Path, redis_url: str, keys: ServiceKeys, num_replicas: int, stop: Event) -> None:
    """Run all nodes in this process until `stop` is set."""
    uvloop.run(_simulate(ids, folder, redis_url, keys, num_replicas, stop))


async def _simulate(
    ids: list[str], folder: Path, redis_url: str, keys: ServiceKeys, num_replicas: int, stop: Event
) -> None:
    loop, pops, nodes = asyncio.get_running_loop(), list(KNOWN_POPS), []
    servers = []  # uvloop closes a server that nothing refers to
    for index, node_id in enumerate(ids):
        path = folder / f"{node_id}.sock"
        identity = keys.identity(f"node/{node_id}")
        node = SimulatedNode(node_id, pops[index % len(pops)], f"unix://{path}", identity, num_replicas)
        servers.append(await loop.create_unix_server(partial(NodeSide, cast(FakeNode, node)), str(path)))
        nodes.append(node)
    store = Ephemeral.connect(redis_url, timeout_s=10)
    while not stop.is_set():
        started_s = loop.time()
        for node in nodes:
            await store.announce("nodes", node.node_id, node.status(), ttl_s=60)
        await asyncio.sleep(max(0.0, started_s + 1 - loop.time()))
    await store.close()


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, in all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def used_in(pid: int, seconds: float) -> float:
    """Return the part of a core that a process uses during the next seconds."""
    before, started_s = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - started_s)


@contextlib.contextmanager
def dashboard(base_url: str, headers: dict[str, str]) -> Iterator[dict[str, int]]:
    """Follow all events, and read the metric summary every SUMMARY_PERIOD_S seconds. Yields counts of what arrived."""
    counts, is_over = {"events": 0, "bytes": 0}, threading.Event()

    def follow() -> None:
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("GET", f"{base_url}/events", headers=headers, timeout=60) as response,
        ):
            for chunk in response.iter_bytes():
                counts["events"] += chunk.count(b"event: ")
                counts["bytes"] += len(chunk)
                if is_over.is_set():
                    return

    def poll() -> None:
        while not is_over.wait(SUMMARY_PERIOD_S):
            httpx.get(f"{base_url}/metrics/summary", headers=headers, timeout=60)

    threads = [threading.Thread(target=each, daemon=True) for each in (follow, poll)]
    for thread in threads:
        thread.start()
    yield counts
    is_over.set()
    for thread in threads:
        thread.join(30)


def measure(running: Running, seconds: float, rounds: int) -> dict[str, object]:
    headers = session_headers(running, "administrator", email="bench@example.org")
    base_url, process = running.gateway.base_url, running.gateway.process
    assert process is not None
    latencies_ms, size = [], 0
    for _ in range(20):
        started_s = time.monotonic()
        size = len(httpx.get(f"{base_url}/nodes", headers=headers, timeout=60).raise_for_status().content)
        latencies_ms.append((time.monotonic() - started_s) * 1000)
        time.sleep(0.3)
    without, with_one = [], []
    last: dict[str, int] = {}
    for _ in range(rounds):
        without.append(used_in(process.pid, seconds))
        with dashboard(base_url, headers) as counts:
            last = counts
            time.sleep(2)
            with_one.append(used_in(process.pid, seconds))
        time.sleep(12)  # call feeds are announced for 10 seconds
    added = [after - before for before, after in zip(without, with_one, strict=True)]
    return {
        "nodes_route_p50_ms": round(statistics.median(latencies_ms), 1),
        "nodes_route_max_ms": round(max(latencies_ms), 1),
        "nodes_route_bytes": size,
        "gateway_core_without": [round(each, 4) for each in without],
        "gateway_core_with_one_dashboard": [round(each, 4) for each in with_one],
        "added_by_one_dashboard_median": round(statistics.median(added), 4),
        "last_round": last,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"hearth-fleet-{os.getpid()}"
    folder.mkdir()
    database_file = folder / "hearth.db"
    asyncio.run(migrate(f"sqlite://{database_file}"))
    keys, ids = service_keys(), node_ids(options.nodes)
    add_keys(keys, ids)
    site, stop = Site(database_file), multiprocessing.Event()
    arguments = (ids, folder, site.redis.url, keys, options.replicas, stop)
    nodes = multiprocessing.Process(target=simulate, args=arguments, daemon=True)
    nodes.start()
    try:
        site.add_node("n1")  # has the models of the site, so that the gateway becomes ready
        gateway = site.gateway(HEARTH_ACCESS_LOG="0").start()
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while gateway.metric("hearth_nodes_alive") <= options.nodes:
            assert time.monotonic() < deadline_s, gateway.log_text()[-2000:]
            time.sleep(0.5)
        figures = measure(Running(site, gateway), options.seconds, options.rounds)
        print(json.dumps({"nodes": options.nodes, "replicas": options.nodes * options.replicas, **figures}))
    finally:
        stop.set()
        nodes.join(10)
        site.close()


if __name__ == "__main__":
    main()
