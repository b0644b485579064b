"""Measure placement and the refresh of the node snapshot with thousands of simulated nodes.

    python -m bench.placement [--nodes 5000] [--seconds 10]

One process publishes a changed status of every node each second to a real Redis. This process refreshes a snapshot of
these nodes as a gateway does, without opening connections, and places calls of a model that 200 of the nodes have.
Prints JSON: microseconds of CPU time per placement, and milliseconds of CPU time per second for refreshing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from unittest import mock

import msgspec

from catalog.card import ModelCard
from engine.protocol.status import NodeStatus, ReplicaStatus
from gateway import placement
from gateway.nodes import connections, snapshot
from gateway.nodes.geography import Geography
from gateway.nodes.known_pops import KNOWN_POPS
from storage.embedded_redis import EmbeddedRedis
from storage.ephemeral import Ephemeral
from tests.gateway.process import CHATTY, PARROT, cards
from tests.service_keys import service_keys

NUM_HOSTS = 200  # nodes with the model of the calls
NUM_CALLS = 3000
TTL_S = 60.0


def status_of(number: int, card: ModelCard, others: list[ModelCard]) -> NodeStatus:
    """Return a status with five replicas, of which one is of `card` on the first NUM_HOSTS nodes."""
    pops = list(KNOWN_POPS)
    models = [card, *others] if number < NUM_HOSTS else [others[0], *others]
    replicas = tuple(
        ReplicaStatus(
            model=model.name if index == 0 else f"@cf/simulated/model-{index}", revision=model.revision, state="ready",
            queued_tokens=random.randrange(20_000), num_running=random.randrange(100), num_blocks=20_000,
            num_free_blocks=random.randrange(20_000), num_computed_tokens=random.randrange(10**9), busy_us=10**9,
        )
        for index, model in enumerate(models[:5])
    )  # fmt: skip
    return NodeStatus(
        node_id=f"sim-{number:04d}", pop=pops[number % len(pops)], address="tcp://127.0.0.1:9", replicas=replicas,
        device="cuda", device_name="NVIDIA H200", memory_bytes=141 << 30,
    )  # fmt: skip


def publish(url: str, num_nodes: int, is_over: Event) -> None:
    """Publish a changed status of every node each second."""
    known = {each.name: each for each in cards()}
    others = [known[CHATTY]] * 5

    async def run() -> None:
        store = Ephemeral.connect(url, timeout_s=30)
        while not is_over.is_set():
            began_s = time.monotonic()
            for number in range(num_nodes):
                payload = msgspec.json.encode(status_of(number, known[PARROT], others))
                await store.announce("nodes", f"sim-{number:04d}", payload, TTL_S)
            await asyncio.sleep(max(0.0, began_s + 1.0 - time.monotonic()))

    asyncio.run(run())


async def _idle(_link: connections.NodeLink) -> None:
    """Replace `NodeLink.run`: the simulated nodes accept no connections."""


async def measure(url: str, num_nodes: int, seconds: float) -> dict[str, float]:
    card = next(each for each in cards() if each.name == PARROT)
    store = Ephemeral.connect(url, timeout_s=30)
    is_open = mock.patch.object(connections.NodeLink, "is_open", property(lambda _link: True))
    with mock.patch.object(connections.NodeLink, "run", _idle), is_open:
        nodes = snapshot.Nodes(
            store, identity=service_keys().identity("gateway/gateway"), sender="bench", geography=Geography("fra", {})
        )
        while nodes.num_reachable < num_nodes:
            await nodes.refresh()
            await asyncio.sleep(snapshot.REFRESH_INTERVAL_S)
        began_s, used_s = time.monotonic(), 0.0
        while time.monotonic() < began_s + seconds:
            before_s = time.thread_time()
            await nodes.refresh()
            used_s += time.thread_time() - before_s
            await asyncio.sleep(snapshot.REFRESH_INTERVAL_S)
        refresh_ms = 1000 * used_s / (time.monotonic() - began_s)
        before_s = time.thread_time()
        found = nodes.candidates(card)
        first_ms = 1000 * (time.thread_time() - before_s)
        times = []
        for number in range(NUM_CALLS):
            affinity = placement.affinity_key(b"n" * 32, b"s%d" % number, "")
            before_s = time.thread_time()
            placement.place(affinity, nodes.candidates(card), now_s=nodes.now_s(), num_tokens=500)
            times.append(1e6 * (time.thread_time() - before_s))
        await nodes.close()
    await store.close()
    times.sort()
    return {
        "nodes": num_nodes, "candidates": len(found), "place_p50_us": round(times[NUM_CALLS // 2]),
        "place_p99_us": round(times[int(0.99 * NUM_CALLS)]), "candidates_after_refresh_ms": round(first_ms, 2),
        "refresh_ms_per_s": round(refresh_ms, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hearth-bench-") as folder:
        redis = EmbeddedRedis(Path(folder))
        redis.start()
        redis.wait_ready()
        is_over = multiprocessing.Event()
        publisher = multiprocessing.Process(target=publish, args=(redis.url, options.nodes, is_over))
        publisher.start()
        try:
            print(json.dumps(asyncio.run(measure(redis.url, options.nodes, options.seconds))))
        finally:
            is_over.set()
            publisher.join()
            redis.stop()


if __name__ == "__main__":
    main()
