"""Two gateways and two PoPs with two nodes each, on Postgres, Redis and S3: a distant PoP, and a PoP that is cut off.

The processes are those of docker-compose.yml, with a second node in each PoP. Proxies carry all connections to the
nodes of a PoP, and those of its processes to the stores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from catalog.builtin import find_folder
from tests.deploy.compose_processes import Deployment
from tests.deploy.test_compose import GATEWAYS
from tests.faults.proxy import FaultProxy
from tests.waiting import wait_until_blocking

pytestmark = [pytest.mark.full, pytest.mark.timeout(500)]

MODEL = "@cf/acme/spark"  # Spark, published to the S3 server
NODES = {"lis": ("node-lis", "node-lis-2"), "fra": ("node-fra", "node-fra-2")}
DELAY_S = 0.04
NUM_CALLS, NUM_CLIENTS = 60, 4


class TwoPops:
    """The deployment, and by PoP the proxies of its connections to other PoPs and to the stores."""

    def __init__(self, deployment: Deployment, proxies: dict[str, list[FaultProxy]]) -> None:
        self.deployment = deployment
        self.proxies = proxies
        deployment.run("migrate")
        deployment.run("keys")
        deployment.run("keys", "hearth service ensure node/lis-2@lis node/fra-2@fra")
        for name in (*GATEWAYS, *NODES["lis"], *NODES["fra"]):
            deployment.start(name)
        self.account_id = self._hearth("account create main")["account_id"]
        secret = self._hearth(f"token create --account {self.account_id} --name x --admin")["secret"]
        self._headers = {"Authorization": f"Bearer {secret}"}

    def _hearth(self, command: str, gateway: str = "gateway-fra") -> Any:
        return json.loads(self.deployment.run(gateway, f"hearth {command} --json"))

    def manage(self, command: str, gateway: str) -> Any:
        """Run a command that asks a gateway."""
        return self._hearth(f"{command} --url {self.deployment.url(gateway)}", gateway)

    def reachable(self, gateway: str) -> set[str]:
        """Return the PoPs of the nodes that the gateway reaches, and that have the model of the calls."""
        return {
            node["pop"]
            for node in self.manage("node list", gateway)
            if node["is_reachable"]
            and {"ready", "idle"} & {e["state"] for e in node["replicas"] if e["model"] == MODEL}
        }

    def publish_and_load(self) -> None:
        """Publish the model to the S3 server, and load it on every node."""
        self._hearth(f"model publish {find_folder('@cf/hearth/spark')} --name {MODEL}", "gateway-lis")
        for pop in NODES:
            for number in (1, 2):
                self.manage(f"node load {pop}-{number} {MODEL}", "gateway-lis")

    def ask(self, gateway: str, number: int = 0) -> httpx.Response:
        url = f"{self.deployment.url(gateway)}/client/v4/accounts/{self.account_id}/ai/run/{MODEL}"
        return httpx.post(url, headers=self._headers, json={"prompt": f"Hello {number}", "max_tokens": 4}, timeout=120)

    def recorded(self) -> dict[str, str]:
        """Return the node of each call in the ledger, by request id."""
        url = f"{self.deployment.url('gateway-fra')}/client/v4/accounts/{self.account_id}/ai/usage/calls"
        found = httpx.get(url, headers=self._headers, params={"limit": 500}, timeout=60).raise_for_status()
        entries = found.json()["result"]
        nodes = {entry["request_id"]: entry["node_id"] for entry in entries}
        assert len(nodes) == len(entries), "no call is recorded twice"
        return nodes

    def pops_of(self, responses: list[httpx.Response]) -> list[str]:
        """Wait until all calls are in the ledger, and return the PoP of each."""
        assert [response.status_code for response in responses] == [200] * len(responses)
        ids = [response.headers["cf-ai-req-id"] for response in responses]
        wait_until_blocking(lambda: set(ids) <= self.recorded().keys())
        nodes = self.recorded()
        return [nodes[id_].partition("-")[0] for id_ in ids]


@pytest.fixture
def two_pops(
    short_tmp_path: Path, new_postgres_url: str, redis_url: str, s3_objects_url: str, s3_server: str
) -> Iterator[TwoPops]:
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    deployment = Deployment(short_tmp_path, new_postgres_url, redis_url, OBJECTS_URL=s3_objects_url, **keys)
    proxies: dict[str, list[FaultProxy]] = {}
    with ExitStack() as stack:
        for pop, names in NODES.items():
            deployment.add_node(names[1], names[0], f"{pop}-2")
            stores, environ = _stores(short_tmp_path / pop, new_postgres_url, redis_url, s3_server)
            proxies[pop] = [stack.enter_context(proxy) for proxy in stores]
            environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{stores[-1].port}"
            deployment.set(f"gateway-{pop}", **environ)
            for name in names:
                proxy = stack.enter_context(FaultProxy(("127.0.0.1", deployment.node_ports[name])))
                proxies[pop].append(proxy)
                deployment.set(name, HEARTH_NODE_ADVERTISE=f"tcp://127.0.0.1:{proxy.port}", **environ)
        try:
            yield TwoPops(deployment, proxies)
        finally:
            for proxy in (each for of_pop in proxies.values() for each in of_pop):
                proxy.heal()
            deployment.stop()


def _stores(folder: Path, postgres_url: str, redis_url: str, s3_url: str) -> tuple[list[FaultProxy], dict[str, str]]:
    """Return proxies of Postgres, Redis and S3 for one PoP, and the addresses of the first two."""
    folder.mkdir()
    postgres = Path(parse_qs(urlsplit(postgres_url).query)["host"][0])
    redis = Path(redis_url.removeprefix("unix://").partition("?")[0])
    s3 = urlsplit(s3_url)
    proxies = [
        FaultProxy(postgres / ".s.PGSQL.5432", folder / ".s.PGSQL.5432"),
        FaultProxy(redis, folder / "redis"),
        FaultProxy((str(s3.hostname), int(s3.port or 80))),
    ]
    environ = {
        "DATABASE_URL": postgres_url.replace(str(postgres), str(folder)),
        "REDIS_URL": redis_url.replace(str(redis), str(folder / "redis")),
    }
    return proxies, environ


def test_calls_avoid_a_distant_pop_and_survive_the_loss_of_the_near_one(two_pops: TwoPops):
    both = {"lis", "fra"}
    for proxy in two_pops.proxies["fra"][3:]:
        proxy.delay(DELAY_S)
    two_pops.publish_and_load()
    for gateway in GATEWAYS:
        wait_until_blocking(lambda: two_pops.reachable(gateway) == both, 120)  # noqa: B023

    def is_measured() -> bool:
        pops = {pop["pop"]: pop for pop in two_pops.manage("pop list", "gateway-lis")}
        return bool(pops["fra"]["is_measured"] and pops["fra"]["round_trip_ms"] >= 2000 * DELAY_S)

    wait_until_blocking(is_measured)
    near = [two_pops.ask("gateway-lis", number) for number in range(10)]
    assert two_pops.pops_of(near) == ["lis"] * len(near)

    def call(number: int) -> httpx.Response:
        if number == NUM_CALLS // 3:
            for proxy in two_pops.proxies["lis"]:
                proxy.partition()
        return two_pops.ask(GATEWAYS[number % 2], number)

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        responses = list(clients.map(call, range(NUM_CALLS)))
    assert two_pops.reachable("gateway-fra") == {"fra"}
    for proxy in two_pops.proxies["lis"]:
        proxy.heal()
    assert "fra" in two_pops.pops_of(responses)
    for gateway in GATEWAYS:
        wait_until_blocking(lambda: two_pops.reachable(gateway) == both)  # noqa: B023
