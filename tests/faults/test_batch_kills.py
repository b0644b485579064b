"""Gateways, Redis, Postgres and nodes are killed at seeded moments while batches are queued and run. Every request has
exactly one response and one usage entry.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from storage.database import Database
from tests.gateway.inference.test_text_generation import script
from tests.gateway.process import PARROT, GatewayProcess
from tests.gateway.site import Running, Site
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until_blocking

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SEED = 7
NUM_BATCHES, NUM_REQUESTS = 12, 60
VICTIMS = ("gateway 0", "gateway 1", "gateway 0", "redis", "postgres", "node", "everything", "everything")
ENVIRON = {"HEARTH_BATCH_LEASE_S": "1.5", "HEARTH_BATCH_MAX_CALLS": "8"}


class Campaign:
    """Two gateways and two nodes, and a method to kill them."""

    def __init__(self, site: Site, postgres: PostgresServer) -> None:
        self.site = site
        self.postgres = postgres
        self.num_nodes = 0
        for _ in range(2):
            self.add_node()
        self.gateways = [Running(site, site.gateway(**ENVIRON).start()) for _ in range(2)]

    def add_node(self) -> None:
        self.site.add_node(f"n{self.num_nodes}")
        self.num_nodes += 1

    def kill(self, victim: str, rng: random.Random) -> None:
        """Kill processes, and restart those that a supervisor would restart."""
        is_all = victim == "everything"
        gateways = [0, 1] if is_all else [int(victim[-1])] if victim.startswith("gateway") else []
        for number in gateways:
            process = self.gateways[number].gateway.process
            assert process is not None
            process.kill()
            process.wait()
        if victim == "node" or is_all:
            alive = [name for name, node in self.site.nodes.items() if node.connections]
            if alive:
                self.site.nodes[rng.choice(alive)].die()
            self.add_node()
        if victim == "redis" or is_all:
            os.kill(self.site.redis.pid, signal.SIGKILL)
            self.site.redis.stop()
            self.site.redis.start()
            self.site.redis.wait_ready()
        if victim == "postgres" or is_all:
            self.postgres.kill()
            self.postgres.start()
        for number in gateways:
            old = self.gateways[number].gateway
            again = GatewayProcess(old.folder, old.database_url, old.redis_url, old.environ)
            self.site.gateways.append(again)
            self.gateways[number] = Running(self.site, again.start())

    def ask(self, body: dict, name: str, key: str = "") -> dict[str, Any]:
        """Send a request to each gateway in turn until one accepts it."""
        headers = {"idempotency-key": key} if key else {}
        account = self.site.tenants.other_account_id if name == "other" else self.site.tenants.account_id
        end = time.monotonic() + 90
        while time.monotonic() < end:
            for running in self.gateways:
                url = f"{running.gateway.base_url}/accounts/{account}/ai/run/{PARROT}?queueRequest=true"
                with contextlib.suppress(httpx.TransportError):
                    response = httpx.post(url, json=body, headers=headers | running.headers(name), timeout=10)
                    if response.status_code == 200:
                        result: dict[str, Any] = response.json()["result"]
                        return result
                    assert response.status_code in (401, 409, 429, 503), response.text
            time.sleep(0.05)
        raise AssertionError("no gateway accepted the request in time")


def requests_of(batch: int) -> list[dict[str, Any]]:
    rng = random.Random(SEED * 1000 + batch)
    return [
        {
            "prompt": script(tokens=[f"{batch}/", f"{number}"], first_s=rng.choice([0, 0.01, 0.2])),
            "external_reference": f"{batch}/{number}",
        }
        for number in range(NUM_REQUESTS)
    ]


def test_every_request_has_one_response_and_one_entry_despite_kills(
    new_site: Callable[..., Site], own_postgres: PostgresServer
):
    campaign = Campaign(new_site(own_postgres.url), own_postgres)
    owners = ["other" if number % 3 == 0 else "good" for number in range(NUM_BATCHES)]
    ids: dict[int, str] = {}

    def submit() -> None:
        for number, name in enumerate(owners):
            body = {"requests": requests_of(number)}
            ids[number] = campaign.ask(body, name, key=f"batch {number}")["request_id"]
            time.sleep(0.4)

    submitting = threading.Thread(target=submit)
    submitting.start()
    rng = random.Random(SEED)
    for victim in rng.sample(VICTIMS, len(VICTIMS)):
        time.sleep(rng.uniform(0.05, 0.8))
        campaign.kill(victim, rng)
    submitting.join(120)
    assert len(ids) == NUM_BATCHES
    for number, name in enumerate(owners):
        found = wait_until_blocking(lambda n=number, actor=name: _finished(campaign, ids[n], actor), 60, 0.1)
        assert [item["id"] for item in found] == list(range(NUM_REQUESTS))
        for item in found:
            assert item["success"], item
            assert item["result"]["response"] == item["external_reference"] == f"{number}/{item['id']}"
    rows = asyncio.run(_entries(own_postgres.url))
    wanted = {f"{batch_id}-{number}" for batch_id in ids.values() for number in range(NUM_REQUESTS)}
    assert {row: count for row, count in rows.items() if row in wanted} == dict.fromkeys(wanted, 1)
    assert len(rows) == len(wanted), "a batch was queued twice"
    assert num_runs(campaign) < 2 * len(wanted), "too many requests ran more than once"


def num_runs(campaign: Campaign) -> int:
    runs = Counter(e.request_id for node in campaign.site.nodes.values() for e in node.executes)
    return sum(runs.values())


def _finished(campaign: Campaign, batch_id: str, name: str) -> list[dict[str, Any]] | None:
    return campaign.ask({"request_id": batch_id}, name).get("responses")


async def _entries(url: str) -> Counter[str]:
    """Count the successful usage entries of each request, which have two tokens."""
    database = Database.connect(url)
    try:
        async with database.connection() as connection:
            query = text("SELECT request_id FROM usage_entries WHERE completion_tokens = 2 AND status = 'stop'")
            return Counter((await connection.execute(query)).scalars())
    finally:
        await database.close()
