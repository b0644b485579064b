"""The services of docker-compose.yml create, use and rotate their keys."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.deploy.compose_processes import Deployment
from tests.deploy.test_compose import GATEWAYS, NODES
from tests.waiting import wait_until_blocking

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]  # a real node loads its models

KEY_VOLUMES = [f"{name}-key" for name in (*GATEWAYS, *NODES)]


@pytest.fixture
def deployment(short_tmp_path: Path, new_postgres_url: str, redis_url: str) -> Iterator[Deployment]:
    made = Deployment(short_tmp_path, new_postgres_url, redis_url)
    yield made
    made.stop()


def test_first_start_creates_service_keys_that_can_be_rotated(deployment: Deployment):
    """Keys are created, used, rotated, revoked and restored without a restart and without a shared secret."""
    deployment.run("migrate")
    deployment.run("keys")
    made = {name: list(deployment.volume(name).iterdir()) for name in KEY_VOLUMES}
    for files in made.values():
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600]
    deployment.run("keys")
    assert made == {name: list(deployment.volume(name).iterdir()) for name in made}, "the second start makes none"
    assert not list(deployment.volume("ring").glob("*.pem"))
    for name in (*NODES, *GATEWAYS):
        deployment.start(name)
    wait_until_blocking(lambda: deployment.is_ready, 120)
    assert all("gateway connected" in deployment.log(name) for name in NODES)

    account = json.loads(deployment.run("gateway-lis", "hearth account create main --json"))["account_id"]
    created = json.loads(deployment.run("gateway-fra", f"hearth token create --account {account} --name x --json"))

    def ask(gateway: str) -> httpx.Response:
        url = f"{deployment.url(gateway)}/client/v4/accounts/{account}/ai/run/@cf/hearth/spark"
        headers = {"Authorization": f"Bearer {created['secret']}"}
        return httpx.post(url, headers=headers, json={"prompt": "Hello", "max_tokens": 4}, timeout=60)

    assert [ask(gateway).status_code for gateway in GATEWAYS] == [200, 200]
    services = ("gateway/lis", "gateway/fra", "node/lis-1@lis", "node/fra-1@fra")
    for name in services:
        deployment.run("keys", f"hearth service rotate {name.partition('@')[0]} --overlap 0s")
    for node in ("node/lis-1", "node/fra-1"):
        deployment.run("keys", f"hearth service revoke --subject {node}")
    wait_until_blocking(lambda: not deployment.is_ready)
    assert ask("gateway-lis").json()["errors"][0]["code"] == 3040
    for node in ("node/lis-1", "node/fra-1"):
        deployment.run("keys", f"hearth service reinstate {node}")
    deployment.run("keys")
    wait_until_blocking(lambda: deployment.is_ready)
    assert ask("gateway-lis").status_code == 200
    result = deployment.run("gateway-lis", "hearth audit list --json")
    assert {"service_key.make", "service_key.rotate", "service_subject.revoke"} <= {
        entry["action"] for entry in json.loads(result)
    }
    deployment.kill("node-lis")
    assert {ask("gateway-lis").status_code for _ in range(20)} == {200}, "the other PoP takes the calls"
