"""The connection to each node: authenticated before use, kept alive, reopened; its calls end with it."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.protocol import wire
from engine.protocol.events import Finished, Started, Token
from engine.protocol.tasks.text_generation import TextGeneration
from gateway.nodes import connections
from gateway.nodes.connections import NodeLink, NodeLost
from gateway.nodes.inbox import Inbox
from gateway.settings import GatewaySettings
from service_identity.service_identity import ServiceIdentity
from telemetry.settings import read_settings
from tests.certificates import certificates
from tests.fakes.node import WORDS, FakeNode
from tests.service_keys import ServiceKeys, service_keys
from tests.waiting import PATIENCE_S, wait_until

REQUIRED = {
    "DATABASE_URL": "sqlite:///nowhere",
    "REDIS_URL": "unix:///nowhere",
    "HEARTH_SPOOL_DIR": "nowhere",
    "HEARTH_TOKEN_PEPPER": "01" * 32,
    "HEARTH_CACHE_SECRET": "02" * 32,
    "HEARTH_SERVICE_RING": "nowhere",
    "HEARTH_SERVICE_KEYS": "nowhere",
}
STREAM = {"waits_for_end": False, "max_bytes": 1 << 20}


@pytest.fixture
def node(short_tmp_path: Path) -> Iterator[FakeNode]:
    fake = FakeNode("n1", short_tmp_path, {}, service_keys().identity("node/n1")).start()
    yield fake
    fake.stop()


def node_link(address: str, identity: ServiceIdentity | None = None, tls: ssl.SSLContext | None = None) -> NodeLink:
    """A link to node n1 at `address`."""
    identity = identity or service_keys().identity("gateway/gateway")
    return NodeLink("n1", address, pop="local", sender="g", identity=identity, on_change=lambda: None, tls=tls)


@contextlib.asynccontextmanager
async def linked(node: FakeNode, identity: ServiceIdentity | None = None):
    link = node_link(node.address, identity)
    job = asyncio.create_task(link.run())
    yield link
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)


def execute(prompt: str):
    def make(call_id: int) -> wire.Execute:
        return wire.Execute(
            call_id=call_id,
            request_id=f"r{call_id}",
            model="m",
            revision="r",
            namespace=b"n" * 32,
            tenant=1,
            task=TextGeneration(prompt=prompt),
            deadline_s=10,
        )

    return make


async def drain(inbox: Inbox) -> list:
    events = []
    while not inbox.has_ended or not events or not isinstance(events[-1], Finished):
        events += await inbox.take()
    return events


async def test_many_calls_share_one_connection_and_each_gets_its_own_events(node: FakeNode):
    async with linked(node) as link:
        await wait_until(lambda: link.is_open)
        inboxes = [Inbox(**STREAM) for _ in range(50)]
        for inbox in inboxes:
            link.execute(execute("hi"), inbox)
        for inbox in inboxes:
            events = await drain(inbox)
            assert isinstance(events[0], Started)
            assert [event.text for event in events if isinstance(event, Token)] == list(WORDS)
        assert len(node.connections) == 1


async def test_inbox_that_waits_for_the_end_returns_all_events_at_once(node: FakeNode):
    async with linked(node) as link:
        await wait_until(lambda: link.is_open)
        inbox = Inbox(waits_for_end=True, max_bytes=1 << 20)
        link.execute(execute('!{"gap_s": 0.01}'), inbox)
        assert isinstance((await inbox.take())[-1], Finished)


async def test_calls_on_a_dead_node_fail_at_once(node: FakeNode):
    async with linked(node) as link:
        await wait_until(lambda: link.is_open)
        inbox = Inbox(**STREAM)
        link.execute(execute('!{"first_s": 60}'), inbox)
        node.die()
        with pytest.raises(NodeLost):
            await asyncio.wait_for(inbox.take(), PATIENCE_S)
        await wait_until(lambda: not link.is_open)
        with pytest.raises(NodeLost):
            link.execute(execute("hi"), Inbox(**STREAM))


async def test_closing_connection_accepts_no_call(node: FakeNode):
    """Between the socket's end and the news of it, a call finds the node lost, as it would a moment later."""
    async with linked(node) as link:
        await wait_until(lambda: link.is_open)
        inbox = Inbox(**STREAM)
        call_id = link.execute(execute("slow"), inbox)
        connection = link._connection
        assert connection is not None
        assert connection.transport is not None
        connection.transport.abort()
        assert link.is_open
        with pytest.raises(NodeLost):
            link.execute(execute("again"), Inbox(**STREAM))
        link.cancel(call_id)
        with pytest.raises(NodeLost):
            await drain(inbox)


async def test_node_that_sends_garbage_is_disconnected_and_reconnected(node: FakeNode):
    async with linked(node) as link:
        await wait_until(lambda: link.is_open)
        inbox, first = Inbox(**STREAM), link._connection
        link.execute(execute('!{"then_after": 1, "then": "garbage"}'), inbox)
        with pytest.raises(NodeLost):
            await asyncio.wait_for(drain(inbox), PATIENCE_S)
        # Its calls hear of a connection's end a moment before the link does.
        await wait_until(lambda: link.is_open and link._connection is not first)
        again = Inbox(**STREAM)
        link.execute(execute("hi"), again)
        await drain(again)


async def test_silent_node_is_disconnected(node: FakeNode, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections.wire, "KEEPALIVE_INTERVAL_S", 0.02)
    async with linked(node) as link:
        await wait_until(lambda: link.is_open)
        inbox = Inbox(**STREAM)
        link.execute(execute('!{"first_s": 60}'), inbox)
        await wait_until(lambda: node.executes)
        node.is_deaf = True
        monkeypatch.setattr(connections.wire, "KEEPALIVE_TIMEOUT_S", 0.1)
        with pytest.raises(NodeLost):
            await asyncio.wait_for(inbox.take(), PATIENCE_S)


async def test_suspended_gateway_does_not_drop_nodes_as_silent(node: FakeNode, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connections.wire, "KEEPALIVE_INTERVAL_S", 0.02)
    monkeypatch.setattr(connections.wire, "KEEPALIVE_TIMEOUT_S", 0.8)
    async with linked(node) as link:
        await wait_until(lambda: link.is_open)
        inbox = Inbox(**STREAM)
        link.execute(execute('!{"first_s": 60}'), inbox)
        await wait_until(lambda: node.executes)
        node.is_deaf = True  # nothing has arrived meanwhile, as if both machines had been suspended
        await asyncio.sleep(0.1)
        time.sleep(1.0)  # noqa: ASYNC251 - the event loop stands still: that is the point
        node.is_deaf = False
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(inbox.take(), 0.3)
        assert link.is_open


async def test_round_trip_does_not_include_a_delay_of_the_gateway_while_it_connects(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connections.wire, "KEEPALIVE_INTERVAL_S", 0.1)
    async with linked(node) as link:
        # Runs after the first ping is sent and before its response is read.
        link._on_change = lambda: asyncio.get_running_loop().call_soon(time.sleep, 0.5)
        round_trip_s = await wait_until(lambda: link.round_trip_s)
        assert link._connection is not None
        assert max(link._connection.round_trips_s) >= 0.5 > round_trip_s


async def test_gateway_with_a_key_from_another_ring_is_not_connected(
    node: FakeNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    other_ring = ServiceKeys(tmp_path, ("gateway/gateway",))
    async with linked(node, other_ring.identity("gateway/gateway")) as link:
        await wait_until(lambda: "node connection failed" in caplog.text)
        assert not link.is_open


async def test_node_without_valid_credentials_gets_no_calls(short_tmp_path: Path, caplog: pytest.LogCaptureFixture):
    class Impostor(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport
            transport.write(wire.encode(wire.Hello(version=wire.VERSION, sender="n1", nonce=b"1" * 16)))

        def data_received(self, _data):
            forged = wire.Hello(version=wire.VERSION, sender="n1", nonce=b"1" * 16, token="a.b.c")
            self.transport.write(wire.encode(forged))

    path = str(short_tmp_path / "impostor.sock")
    server = await asyncio.get_running_loop().create_unix_server(Impostor, path)
    link = node_link(f"unix://{path}")
    job = asyncio.create_task(link.run())
    await wait_until(lambda: "no valid service token" in "".join(str(record.__dict__) for record in caplog.records))
    assert not link.is_open
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)
    server.close()


async def test_cancelled_call_ends_with_the_nodes_usage(node: FakeNode):
    async with linked(node) as link:
        await wait_until(lambda: link.is_open)
        inbox = Inbox(**STREAM)
        call_id = link.execute(execute('!{"gap_s": 60}'), inbox)
        await inbox.take()
        link.cancel(call_id)
        events = await wait_until(lambda: inbox.has_ended and inbox.drain())
        assert events[-1].reason == "aborted"
        assert events[-1].usage.completion_tokens == 1


async def test_tcp_connections_use_mutual_tls(tmp_path: Path):
    ca, node_files, gateway_files = certificates(tmp_path)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.verify_mode = ssl.CERT_REQUIRED
    server_side.load_cert_chain(*node_files)
    server_side.load_verify_locations(ca)
    greeting = wire.encode(wire.Hello(version=wire.VERSION, sender="n1", nonce=b"1" * 16))

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        (hello,) = wire.FrameDecoder().feed(await reader.read(4096))
        token = service_keys().identity("node/n1").sign("gateway/gateway", (b"1" * 16, hello.nonce))
        writer.write(wire.encode(wire.Hello(version=wire.VERSION, sender="n1", nonce=b"1" * 16, token=token)))

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=server_side)
    address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    ours = {"HEARTH_TLS_CERT": gateway_files[0], "HEARTH_TLS_KEY": gateway_files[1], "HEARTH_TLS_CA": ca}
    environ = {**REQUIRED, **{key: str(path) for key, path in ours.items()}}
    for tls, opens in ((read_settings(GatewaySettings, environ).tls_context(), True), (None, False)):
        link = node_link(address, tls=tls)
        job = asyncio.create_task(link.run())
        if opens:
            await wait_until(lambda link=link: link.is_open)
        else:
            done, _ = await asyncio.wait([job], timeout=0.5)
            assert not done
            assert not link.is_open, "a gateway without a certificate got in"
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
    server.close()
