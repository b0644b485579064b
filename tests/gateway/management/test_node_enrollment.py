"""Nodes join with a one-time token: only once, in the PoP of the token, and with an id of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from engine.node import enrollment
from engine.node.enrollment import EnrollmentFailed, enroll
from engine.node.settings import NodeSettings
from service_identity import key_ring
from service_identity.service_identity import ServiceIdentity
from storage.database import Database
from telemetry.settings import read_settings
from tenants.change_context import ChangeContext
from tenants.node_enrollment import create_token
from tests.gateway.process import GatewayProcess
from tests.gateway.site import Running, Site
from tests.service_keys import ServiceKeys
from tests.waiting import wait_until_blocking


@pytest.fixture(scope="module")
def running(new_site: Callable[..., Site], tmp_path_factory: pytest.TempPathFactory) -> Running:
    """A gateway with a key ring of its own."""
    site = new_site()
    keys = ServiceKeys(tmp_path_factory.mktemp("keys"), ("gateway/g1", "node/taken"))
    return Running(site, listening(site.gateway(**keys.environ("gateway/g1"))))


def listening(gateway: GatewayProcess) -> GatewayProcess:
    """Start a gateway that has no node."""
    gateway.launch()
    gateway.wait_listening()
    return gateway


def new_token(running: Running, *, pop: str = "fra", node_id: str = "", life_s: float = 60) -> str:
    async def create() -> str:
        database = Database.connect(running.site.database_url)
        life = timedelta(seconds=life_s)
        secret, _ = await create_token(database, pop=pop, node_id=node_id, life=life, context=ChangeContext())
        await database.close()
        return secret

    return asyncio.run(create())


def node_environ(running: Running, folder: Path, token: str, node_id: str = "n7", pop: str = "fra") -> dict[str, str]:
    return {
        "REDIS_URL": running.site.redis.url,
        "HEARTH_NODE_ID": node_id,
        "HEARTH_POP": pop,
        "HEARTH_NODE_LISTEN": f"unix://{folder}/node.sock",
        "HEARTH_NODE_HTTP": f"unix://{folder}/http.sock",
        "HEARTH_NODE_CACHE_DIR": str(folder / "cache"),
        "HEARTH_NODE_MODELS": "none",
        "HEARTH_SERVICE_RING": str(folder / "ring.json"),
        "HEARTH_SERVICE_KEYS": str(folder / "keys"),
        "HEARTH_GATEWAY_URL": running.gateway.url,
        "HEARTH_NODE_JOIN_TOKEN": token,
    }


def settings_of(environ: dict[str, str]) -> NodeSettings:
    return read_settings(NodeSettings, environ)


def refusal(running: Running, folder: Path, token: str, **node: str) -> str:
    with pytest.raises(EnrollmentFailed) as caught:
        asyncio.run(enroll(settings_of(node_environ(running, folder, token, **node))))
    assert not list(folder.glob("keys/*.pem")), "no key is left behind"
    return str(caught.value)


def test_node_joins_once_with_a_key_bound_to_the_pop_of_its_token(running: Running, tmp_path: Path) -> None:
    settings = settings_of(node_environ(running, tmp_path, new_token(running), node_id="joins"))
    assert asyncio.run(enroll(settings))
    identity = ServiceIdentity(settings.service_ring, settings.service_keys, "node")
    assert (identity.subject, identity.pop) == ("node/joins", "fra")
    assert not asyncio.run(enroll(settings)), "a node with a key does not join again"
    assert "used already" in refusal(running, tmp_path / "other", settings.join_token, node_id="n8")


def test_key_ring_is_given_to_enrolled_nodes_only(running: Running, tmp_path: Path) -> None:
    settings = settings_of(node_environ(running, tmp_path, new_token(running), node_id="reads"))
    asyncio.run(enroll(settings))
    identity = ServiceIdentity(settings.service_ring, settings.service_keys, "node")
    url = f"{running.gateway.base_url}/nodes/ring"

    def read(token: str) -> httpx.Response:
        return httpx.post(url, json={"token": token})

    wait_until_blocking(lambda: read(identity.sign("gateway/ring")).is_success)  # new keys are read once a second
    response = read(identity.sign("gateway/ring"))
    keys = response.json()["result"]["ring"]["keys"]
    assert {"gateway/g1", "node/reads"} <= {key["subject"] for key in keys}
    assert {key["pop"] for key in keys if key["subject"] == "node/reads"} == {"fra"}
    for refused in (read("x.y.z"), read(identity.sign("gateway/g1"))):
        assert refused.status_code == 401


def test_join_token_is_refused_for_another_pop_node_or_time(running: Running, tmp_path: Path) -> None:
    token = new_token(running, node_id="n7")
    assert "the node's HEARTH_POP is iad" in refusal(running, tmp_path, token, pop="iad")
    assert "the node's HEARTH_NODE_ID is n9" in refusal(running, tmp_path, token, node_id="n9")
    assert "has expired" in refusal(running, tmp_path, new_token(running, life_s=-1))
    assert "unknown" in refusal(running, tmp_path, "hearth-join-guess")
    assert asyncio.run(enroll(settings_of(node_environ(running, tmp_path, token)))), "a refusal uses up no token"


def test_second_node_cannot_take_the_id_of_another(running: Running, tmp_path: Path) -> None:
    assert "another node has the id taken" in refusal(running, tmp_path, new_token(running), node_id="taken")
    token = new_token(running, node_id="taken")
    assert asyncio.run(enroll(settings_of(node_environ(running, tmp_path, token, node_id="taken"))))


def test_node_with_a_wrong_clock_is_refused(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = type("Clock", (), {"time": staticmethod(lambda: time.time() + 300)})
    monkeypatch.setattr(enrollment, "time", clock)
    message = refusal(running, tmp_path, new_token(running), node_id="late")
    assert message == "this machine's clock is 300 s ahead of the gateway's; at most 30 s are allowed"


def test_gateway_url_that_is_no_gateway_is_named(running: Running, tmp_path: Path) -> None:
    environ = node_environ(running, tmp_path, "x") | {"HEARTH_GATEWAY_URL": "http://127.0.0.1:9"}
    with pytest.raises(EnrollmentFailed, match=r"HEARTH_GATEWAY_URL: the gateway at .* does not respond"):
        asyncio.run(enroll(settings_of(environ)))


@pytest.mark.full
def test_enrolled_node_serves_calls_and_is_gone_five_seconds_after_a_kill(
    running: Running, short_tmp_path: Path
) -> None:
    environ = {**os.environ, **node_environ(running, short_tmp_path, new_token(running), node_id="real")}
    with (short_tmp_path / "log").open("wb") as log:
        node = subprocess.Popen([sys.executable, "-m", "engine"], stderr=log, env=environ)
    try:
        wait_until_blocking(lambda: running.gateway.metric("hearth_nodes_alive") >= 1, deadline_s=90)
        node.send_signal(signal.SIGKILL)
        node.wait()
        started_s = time.monotonic()
        wait_until_blocking(lambda: running.gateway.metric("hearth_nodes_alive") == 0)
        assert time.monotonic() - started_s < 6
    finally:
        node.kill()
        node.wait()


def test_keys_of_enrolled_nodes_reach_the_ring_of_every_gateway(running: Running, tmp_path: Path) -> None:
    keys = ServiceKeys(tmp_path / "keys", ("gateway/g2",))
    second = listening(running.site.gateway(**keys.environ("gateway/g2")))
    asyncio.run(enroll(settings_of(node_environ(running, tmp_path, new_token(running), node_id="everywhere"))))

    def subjects() -> set[str]:
        return {key.subject for key in key_ring.read_ring(keys.ring).ring.keys}

    wait_until_blocking(lambda: "node/everywhere" in subjects())
    second.stop()
