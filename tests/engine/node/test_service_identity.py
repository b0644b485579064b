"""The real two ends of the wire, each with a key of its own: who proves itself is connected, for as long as it counts;
nobody else is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engine.node.http_door import HttpDoor
from engine.node.server import GatewayDoor
from engine.node.settings import NodeSettings
from engine.protocol import wire
from engine.protocol.status import NodeStatus
from engine.serving.addresses import parse_address
from engine.serving.calls import Calls
from engine.serving.replicas import Replicas
from gateway.nodes.connections import NodeLink
from service_identity import key_ring as service_ring
from service_identity import service_identity
from service_identity.service_identity import ServiceIdentity
from telemetry.settings import read_settings
from tests.engine.node.wire_client import SECRET, Closed, WireClient
from tests.fakes.task_models import FakeLoaders, FakeStore
from tests.waiting import wait_until


class Desk:
    """A ring, and the keys of a gateway, two nodes in Frankfurt and an operator."""

    def __init__(self, folder: Path) -> None:
        self.ring, self.keys = folder / "ring.json", folder / "keys"
        self.kids: dict[str, str] = {}
        for subject, place in (("gateway/g", ""), ("node/n1", "fra"), ("node/n2", "fra"), ("operator/ann", "")):
            self.add(subject, place)

    def add(self, subject: str, place: str = "") -> None:
        private = Ed25519PrivateKey.generate()
        service_ring.write_private_key(service_ring.folder_of(self.keys, subject), private)
        public = service_ring.public_half(private)
        row = service_ring.public_key(public, subject, start_s=time.time(), life_days=1, place=place)
        self.change(lambda ring: service_ring.with_key(ring, row))
        self.kids[subject] = row.kid

    def change(self, how: Callable[[service_ring.Ring], service_ring.Ring]) -> None:
        service_ring.change_ring(self.ring, how, now_s=time.time())

    def identity(self, subject: str, *, is_required: bool = True) -> ServiceIdentity:
        folder = service_ring.folder_of(self.keys, subject)
        return ServiceIdentity(self.ring, folder, subject.split("/")[0], is_required=is_required)  # type: ignore[arg-type]


@pytest.fixture
def desk(short_tmp_path: Path) -> Desk:
    return Desk(short_tmp_path)


@contextlib.asynccontextmanager
async def listening(desk: Desk, identity: ServiceIdentity | None, keys: tuple[bytes, ...] = ()) -> AsyncIterator[str]:
    """A node's door, as node n1."""
    replicas = Replicas(FakeStore(), FakeLoaders(), 4)
    door = GatewayDoor(Calls(replicas, max_calls=4), keys, "n1", None, identity)
    await door.open(parse_address(f"unix://{desk.ring.parent}/node.sock"))
    try:
        yield door.address
    finally:
        await door.close()
        await replicas.close()


@contextlib.asynccontextmanager
async def linked(
    address: str,
    identity: ServiceIdentity | None,
    *,
    node_id: str = "n1",
    proven_pop: str = "fra",
    secret: bytes | None = None,
) -> AsyncIterator[NodeLink]:
    """A gateway's link to a node that presence says is this one."""
    link = NodeLink(
        node_id,
        address,
        secret=wire.pop_key(SECRET, proven_pop) if secret is None else secret,
        sender="g",
        on_change=lambda: None,
        proven_pop=proven_pop,
        identity=identity,
    )
    job = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)


def told(caplog: pytest.LogCaptureFixture) -> str:
    return "".join(str(record.__dict__) for record in caplog.records)


async def test_each_end_proves_itself_by_its_own_key_and_without_a_shared_secret(desk: Desk):
    async with (
        listening(desk, desk.identity("node/n1")) as address,
        linked(address, desk.identity("gateway/g"), secret=b"") as link,
    ):
        await wait_until(lambda: link.is_open)


async def test_no_secret_is_no_secret_that_everybody_knows(desk: Desk, caplog: pytest.LogCaptureFixture):
    """A gateway without the cluster secret: who proves that it holds none has proven nothing."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonce = b"r" * 32
        writer.write(wire.encode(wire.Hello(version=wire.VERSION, sender="n1", nonce=nonce)))
        (hello,) = wire.FrameDecoder().feed(await reader.read(4096))
        assert isinstance(hello, wire.Hello)
        proof = wire.proof(b"", "node", nonce, hello.nonce)
        writer.write(wire.encode(wire.Hello(version=wire.VERSION, sender="n1", nonce=nonce, proof=proof)))
        await reader.read()
        writer.close()

    path = str(desk.ring.parent / "stranger.sock")
    server = await asyncio.start_unix_server(answer, path)
    identity = desk.identity("gateway/g", is_required=False)
    async with linked(f"unix://{path}", identity, secret=b"") as link:
        await wait_until(lambda: link.is_open or "could not prove" in told(caplog))
        assert not link.is_open
    server.close()


@pytest.mark.parametrize("end", ["gateway/g", "node/n1"])
async def test_what_is_revoked_loses_its_open_connection(desk: Desk, monkeypatch: pytest.MonkeyPatch, end: str):
    monkeypatch.setattr(service_identity, "LOOK_S", 0.01)
    monkeypatch.setattr(wire, "KEEPALIVE_INTERVAL_S", 0.02)
    async with (
        listening(desk, desk.identity("node/n1")) as address,
        linked(address, desk.identity("gateway/g")) as link,
    ):
        await wait_until(lambda: link.is_open)
        desk.change(lambda ring: service_ring.with_key_revoked(ring, desk.kids[end], now_s=time.time()))
        await wait_until(lambda: not link.is_open)
        desk.add(end, "fra" if end == "node/n1" else "")
        await wait_until(lambda: link.is_open)


@pytest.mark.parametrize(
    ("ours", "node_id", "proven_pop", "why"),
    [
        ("gateway/g", "n2", "fra", "refused"),  # the address of n1, announced as n2's
        ("gateway/g", "n1", "iad", "not of the place"),
        ("gateway/g", "n1", "", "not of the place"),
        (None, "n1", "fra", "no service token"),
    ],
)
async def test_a_node_is_believed_as_itself_in_its_own_place_alone(
    desk: Desk, caplog: pytest.LogCaptureFixture, ours: str | None, node_id: str, proven_pop: str, why: str
):
    identity = desk.identity(ours) if ours else None
    node_keys = (wire.pop_key(SECRET, "fra"), SECRET)
    async with (
        listening(desk, desk.identity("node/n1"), node_keys) as address,
        linked(address, identity, node_id=node_id, proven_pop=proven_pop) as link,
    ):
        await wait_until(lambda: why in told(caplog))
        assert not link.is_open


@pytest.mark.parametrize(("node_id", "is_good"), [("n1", True), ("n2", False)])
async def test_a_node_that_was_taken_cannot_pass_for_another(
    desk: Desk, caplog: pytest.LogCaptureFixture, node_id: str, is_good: bool
):
    """It holds its own key and does not care whom it is asked to be."""
    taken = desk.identity("node/n1")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonce = b"r" * 32
        writer.write(wire.encode(wire.Hello(version=wire.VERSION, sender=node_id, nonce=nonce)))
        (hello,) = wire.FrameDecoder().feed(await reader.read(4096))
        assert isinstance(hello, wire.Hello)
        token = taken.sign("gateway/g", (nonce, hello.nonce))
        writer.write(wire.encode(wire.Hello(version=wire.VERSION, sender=node_id, nonce=nonce, token=token)))
        await reader.read()
        writer.close()

    path = str(desk.ring.parent / "taken.sock")
    server = await asyncio.start_unix_server(answer, path)
    async with linked(f"unix://{path}", desk.identity("gateway/g"), node_id=node_id) as link:
        await wait_until(lambda: link.is_open if is_good else "no service token of its own" in told(caplog))
        assert link.is_open == is_good
    server.close()


async def test_a_gateway_asks_for_a_token_of_a_node_that_holds_the_shared_secret(
    desk: Desk, caplog: pytest.LogCaptureFixture
):
    keys = (wire.pop_key(SECRET, "fra"), SECRET)
    async with listening(desk, None, keys) as address, linked(address, desk.identity("gateway/g")) as link:
        await wait_until(lambda: "no service token of its own" in told(caplog))
        assert not link.is_open


async def test_while_tokens_are_only_accepted_the_shared_secret_does(desk: Desk, caplog: pytest.LogCaptureFixture):
    keys = (wire.pop_key(SECRET, "fra"), SECRET)
    for node, gateway in ((desk.identity("node/n1", is_required=False), None), (None, "gateway/g")):
        ours = desk.identity(gateway, is_required=False) if gateway else None
        async with listening(desk, node, keys) as address, linked(address, ours) as link:
            await wait_until(lambda link=link: link.is_open)
    async with listening(desk, desk.identity("node/n1", is_required=False), keys) as address:
        client = await WireClient.open(address)
        hello = await client.receive()
        assert isinstance(hello, wire.Hello)
        nonce = b"n" * 16
        proof = wire.proof(SECRET, "gateway", nonce, hello.nonce)
        client.send(wire.Hello(version=wire.VERSION, sender="x", nonce=nonce, proof=proof, token="a.b.c"))
        await client.wait_closed_by_node()  # a token that is shown must be good, whatever else is


async def test_a_token_heard_on_one_connection_opens_no_other(desk: Desk):
    gateway = desk.identity("gateway/g")
    async with listening(desk, desk.identity("node/n1")) as address:
        first, second = await WireClient.open(address), await WireClient.open(address)
        hello = await first.receive()
        assert isinstance(hello, wire.Hello)
        nonce = b"n" * 16
        token = gateway.sign("node/n1", (hello.nonce, nonce))
        said = wire.Hello(version=wire.VERSION, sender="x", nonce=nonce, token=token)
        first.send(said)
        answer = await first.receive()
        assert isinstance(answer, wire.Hello)
        assert gateway.judge(answer.token, {"node"}, (hello.nonce, nonce)) is not None
        await second.receive()
        second.send(said)
        with pytest.raises(Closed):
            await second.receive()
        second.writer.close()
        await first.close()


async def test_the_http_door_takes_an_operator_s_token_once(desk: Desk):
    replicas = Replicas(FakeStore(), FakeLoaders(), 4)
    status = NodeStatus(node_id="n1", pop="fra", address="unix:///x")
    door = HttpDoor(
        Calls(replicas, max_calls=4), FakeStore(), b"", lambda: status, lambda: True, desk.identity("node/n1")
    )
    operator = desk.identity("operator/ann")
    token = operator.sign("node/n1")
    tries = [
        ("", 401),
        ("Bearer ", 401),
        ("Bearer a.b.c", 401),
        (f"Bearer {operator.sign('node/n2')}", 401),
        (f"Bearer {desk.identity('node/n2').sign('node/n1')}", 401),
        (f"Bearer {token}", 400),
        (f"Bearer {token}", 401),
    ]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=door), base_url="http://node") as client:  # type: ignore[arg-type]
        for header, expected in tries:
            answer = await client.post("/execute", content=b"{", headers={"authorization": header})
            assert answer.status_code == expected, header
    await replicas.close()


NEEDED = {"REDIS_URL": "unix:///x", "HEARTH_NODE_LISTEN": "unix:///y", "HEARTH_NODE_ID": "n1", "HEARTH_POP": "fra"}


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"HEARTH_NODE_ID": "n2"}, "HEARTH_NODE_ID is n2"), ({"HEARTH_POP": "iad"}, "HEARTH_POP is iad"), ({}, "")],
)
def test_a_node_is_who_its_key_says(desk: Desk, changed: dict[str, str], says: str):
    files = {"HEARTH_SERVICE_RING": str(desk.ring), "HEARTH_SERVICE_KEYS": str(desk.keys / "node-n1")}
    settings = read_settings(NodeSettings, {**NEEDED, **files, **changed})
    assert settings.keys == ()
    if says:
        with pytest.raises(ValueError, match=says):
            settings.service_identity()
    else:
        identity = settings.service_identity()
        assert identity is not None
        assert identity.subject == "node/n1"
