"""Both real ends of the wire, each with its own key: a peer is connected only while it can prove its identity."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from engine.node.gateway_server import GatewayServer
from engine.node.http_app import HttpApp
from engine.node.settings import NodeSettings
from engine.protocol import wire
from engine.protocol.status import NodeStatus
from engine.serving.addresses import parse_address
from engine.serving.calls import Calls
from engine.serving.replicas import Replicas
from gateway.nodes.connections import NodeLink
from service_identity import key_ring, service_identity
from telemetry.settings import read_settings
from tests.engine.node.wire_client import Closed, WireClient
from tests.fakes.task_models import FakeLoaders, FakeStore
from tests.service_keys import ServiceKeys
from tests.waiting import wait_until


@pytest.fixture
def keys(short_tmp_path: Path) -> ServiceKeys:
    """Return keys of a gateway, an operator and two nodes in Frankfurt."""
    keys = ServiceKeys(short_tmp_path, ("gateway/g", "operator/ann"))
    for node in ("node/n1", "node/n2"):
        keys.add(node, "fra")
    return keys


@contextlib.asynccontextmanager
async def listening(keys: ServiceKeys) -> AsyncIterator[str]:
    """Run node n1, listening for gateways."""
    replicas = Replicas(FakeStore(), FakeLoaders(), 4)
    server = GatewayServer(
        Calls(replicas, max_calls=4), keys.identity("node/n1", "fra"), "n1", None, lambda _change: ""
    )
    await server.open(parse_address(f"unix://{keys.ring.parent}/node.sock"))
    try:
        yield server.address
    finally:
        await server.close()
        await replicas.close()


@contextlib.asynccontextmanager
async def linked(address: str, keys: ServiceKeys, *, node_id: str = "n1", pop: str = "fra") -> AsyncIterator[NodeLink]:
    """Return a gateway's link to the node whose presence says `node_id` in `pop`."""
    identity = keys.identity("gateway/g")
    link = NodeLink(node_id, address, pop=pop, sender="g", identity=identity, on_change=lambda: None)
    job = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)


def logged_messages(caplog: pytest.LogCaptureFixture) -> str:
    return "".join(str(record.__dict__) for record in caplog.records)


async def test_gateway_and_node_authenticate_with_their_own_keys(keys: ServiceKeys):
    async with listening(keys) as address, linked(address, keys) as link:
        await wait_until(lambda: link.is_open)
        assert link.proven_pop == "fra"


@pytest.mark.parametrize("end", ["gateway/g", "node/n1"])
async def test_revoked_key_closes_the_open_connection(keys: ServiceKeys, monkeypatch: pytest.MonkeyPatch, end: str):
    monkeypatch.setattr(service_identity, "CHECK_INTERVAL_S", 0.01)
    monkeypatch.setattr(wire, "KEEPALIVE_INTERVAL_S", 0.02)
    async with listening(keys) as address, linked(address, keys) as link:
        await wait_until(lambda: link.is_open)
        kids = [key.kid for key in key_ring.read_ring(keys.ring).ring.keys if key.subject == end]
        keys.change(lambda ring: key_ring.with_key_revoked(ring, kids[0], now_s=time.time()))
        await wait_until(lambda: not link.is_open)
        keys.add(end, "fra" if end == "node/n1" else "")
        await wait_until(lambda: link.is_open)


@pytest.mark.parametrize(
    ("node_id", "pop", "why"),
    [
        ("n2", "fra", "service token rejected"),  # the presence of n2 has the address of n1
        ("n1", "iad", "bound to PoP fra"),
    ],
)
async def test_node_is_trusted_only_as_itself_and_in_the_pop_of_its_key(
    keys: ServiceKeys, caplog: pytest.LogCaptureFixture, node_id: str, pop: str, why: str
):
    async with listening(keys) as address, linked(address, keys, node_id=node_id, pop=pop) as link:
        await wait_until(lambda: why in logged_messages(caplog))
        assert not link.is_open


@pytest.mark.parametrize(("node_id", "is_good"), [("n1", True), ("n2", False)])
async def test_compromised_node_cannot_impersonate_another(
    keys: ServiceKeys, caplog: pytest.LogCaptureFixture, node_id: str, is_good: bool
):
    """The compromised node signs with its own key, whichever node the gateway expects."""
    identity = keys.identity("node/n1", "fra")

    async def serve_hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonce = b"r" * 32
        writer.write(wire.encode(wire.Hello(version=wire.VERSION, sender=node_id, nonce=nonce)))
        (hello,) = wire.FrameDecoder().feed(await reader.read(4096))
        assert isinstance(hello, wire.Hello)
        token = identity.sign("gateway/g", (nonce, hello.nonce))
        writer.write(wire.encode(wire.Hello(version=wire.VERSION, sender=node_id, nonce=nonce, token=token)))
        await reader.read()
        writer.close()

    path = str(keys.ring.parent / "node.sock")
    server = await asyncio.start_unix_server(serve_hello, path)
    async with linked(f"unix://{path}", keys, node_id=node_id) as link:
        await wait_until(
            lambda: link.is_open if is_good else "no valid service token of its own" in logged_messages(caplog)
        )
        assert link.is_open == is_good
    server.close()


async def test_token_of_one_connection_is_rejected_on_another(keys: ServiceKeys):
    gateway = keys.identity("gateway/g")
    async with listening(keys) as address:
        first, second = await WireClient.open(address), await WireClient.open(address)
        hello = await first.receive()
        assert isinstance(hello, wire.Hello)
        nonce = b"n" * 16
        token = gateway.sign("node/n1", (hello.nonce, nonce))
        said = wire.Hello(version=wire.VERSION, sender="x", nonce=nonce, token=token)
        first.send(said)
        response = await first.receive()
        assert isinstance(response, wire.Hello)
        assert gateway.verify_token(response.token, {"node"}, (hello.nonce, nonce)) is not None
        await second.receive()
        second.send(said)
        with pytest.raises(Closed):
            await second.receive()
        second.writer.close()
        await first.close()


async def test_execute_accepts_an_operator_token_once(keys: ServiceKeys):
    replicas = Replicas(FakeStore(), FakeLoaders(), 4)
    status = NodeStatus(node_id="n1", pop="fra", address="unix:///x")
    node = keys.identity("node/n1", "fra")
    app = HttpApp(Calls(replicas, max_calls=4), replicas, FakeStore(), node, lambda: status, lambda: True)
    operator = keys.identity("operator/ann")
    token = operator.sign("node/n1")
    tries = [
        ("", 401),
        ("Bearer ", 401),
        ("Bearer a.b.c", 401),
        (f"Bearer {operator.sign('node/n2')}", 401),
        (f"Bearer {keys.identity('node/n2', 'fra').sign('node/n1')}", 401),
        (f"Bearer {token}", 400),
        (f"Bearer {token}", 401),
    ]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://node") as client:  # type: ignore[arg-type]
        for header, expected in tries:
            response = await client.post("/execute", content=b"{", headers={"authorization": header})
            assert response.status_code == expected, header
    await replicas.close()


NEEDED = {"REDIS_URL": "unix:///x", "HEARTH_NODE_LISTEN": "unix:///y", "HEARTH_NODE_ID": "n1", "HEARTH_POP": "fra"}


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"HEARTH_NODE_ID": "n2"}, "HEARTH_NODE_ID is n2"), ({"HEARTH_POP": "iad"}, "HEARTH_POP is iad"), ({}, "")],
)
def test_node_id_and_pop_must_match_the_service_key(keys: ServiceKeys, changed: dict[str, str], says: str):
    settings = read_settings(NodeSettings, {**NEEDED, **keys.environ("node/n1", "fra"), **changed})
    if says:
        with pytest.raises(ValueError, match=says):
            settings.service_identity()
    else:
        assert settings.service_identity().subject == "node/n1"
