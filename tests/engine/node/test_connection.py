"""An authenticated gateway is served; one that fails authentication or breaks the protocol loses only its own calls."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.node import connection as module
from engine.node.gateway_server import GatewayServer
from engine.node.management import Management
from engine.protocol import wire
from engine.protocol.events import Failed, Finished, Started, Token, Usage
from engine.serving.addresses import parse_address
from engine.serving.calls import Calls
from engine.serving.http_server import CannotListen
from engine.serving.replicas import Replicas
from tests.certificates import certificates
from tests.engine.node.wire_client import Closed, WireClient, execute
from tests.fakes.task_models import FakeLoaders, FakeModel, FakeRun, FakeStore
from tests.service_keys import service_keys
from tests.waiting import PATIENCE_S, wait_until


class Served:
    """A gateway server on a Unix socket, over a fake model."""

    def __init__(self, folder: Path) -> None:
        self.loaders = FakeLoaders()
        self.replicas = Replicas(FakeStore(), self.loaders, 4)
        self.calls = Calls(self.replicas, max_calls=4)
        self.num_changes = 0
        self.management = Management(self.calls, self.replicas, on_change=self._count_change)
        self.server = self.make_server("n1", None)
        self.folder = folder

    def make_server(self, node_id: str, context: ssl.SSLContext | None) -> GatewayServer:
        identity = service_keys().identity(f"node/{node_id}")
        return GatewayServer(self.calls, identity, node_id, context, self.management.change)

    def _count_change(self) -> None:
        self.num_changes += 1

    async def open(self) -> Served:
        await self.server.open(parse_address(f"unix://{self.folder}/node.sock"))
        return self

    @property
    def model(self) -> FakeModel:
        return self.loaders.models["a"]

    async def run_of(self, client: WireClient, call_id: int) -> FakeRun:
        """Send a call and wait until it runs."""
        num_runs = len(self.loaders.models["a"].runs) if "a" in self.loaders.models else 0
        client.send(execute(call_id))
        await wait_until(lambda: "a" in self.loaders.models and len(self.model.runs) > num_runs)
        return self.model.runs[-1]


@pytest.fixture
async def served(short_tmp_path: Path) -> AsyncIterator[Served]:
    served = await Served(short_tmp_path).open()
    yield served
    await served.server.close()
    await served.replicas.close()


@pytest.fixture
async def client(served: Served) -> AsyncIterator[WireClient]:
    client = await WireClient.connect(served.server.address)
    yield client
    await client.close()


async def test_call_gets_its_events_in_order(served: Served, client: WireClient) -> None:
    said = [Started(3), Token("a"), Token("b"), Finished("stop", Usage(prompt_tokens=3, completion_tokens=2))]
    (await served.run_of(client, 7)).say(*said)
    assert await client.all_events(7) == said
    assert len(served.calls) == 0


async def test_events_of_one_step_are_sent_in_one_write(served: Served, client: WireClient) -> None:
    runs = [await served.run_of(client, call_id) for call_id in (1, 2, 3)]
    for run in runs:
        run.say(Started(1), Token("x"))
    before = client.num_reads
    for _ in range(6):
        await client.receive()
    assert client.num_reads - before == 1


async def managed(client: WireClient, action: wire.ManageAction, model: str = "") -> str:
    """Send a change and return its error."""
    client.send(wire.Manage(9, action, model))
    response = await client.receive()
    assert isinstance(response, wire.Managed)
    assert response.request_id == 9
    return response.error


async def test_drained_node_finishes_its_calls_and_refuses_new_ones_until_undrained(
    served: Served, client: WireClient
) -> None:
    running = await served.run_of(client, 1)
    assert await managed(client, "drain") == ""
    assert served.num_changes == 1
    client.send(execute(2))
    (refused,) = await client.all_events(2)
    assert isinstance(refused, Failed)
    assert (refused.reason, refused.is_retryable) == ("draining", True)
    running.say(Finished("stop"))
    assert await client.all_events(1) == [Finished("stop")]
    assert await managed(client, "undrain") == ""
    (await served.run_of(client, 3)).say(Finished("stop"))
    assert await client.all_events(3) == [Finished("stop")]


async def test_gateway_loads_and_unloads_a_model_after_its_calls(served: Served, client: WireClient) -> None:
    assert await managed(client, "unload", "a") == "a is not loaded"
    assert await managed(client, "load") == "load needs a model"
    assert await managed(client, "load", "a") == ""
    await wait_until(lambda: served.replicas.is_model_ready("a"))
    running = await served.run_of(client, 1)
    assert await managed(client, "unload", "a") == ""
    await wait_until(lambda: [each.state for each in served.replicas.statuses()] == ["draining"])
    running.say(Finished("stop"))
    assert await client.all_events(1) == [Finished("stop")]
    await wait_until(lambda: not served.replicas.statuses())


async def test_ping_gets_a_pong(client: WireClient) -> None:
    client.send(wire.Ping())
    assert await client.receive() == wire.Pong()


@pytest.mark.parametrize("token", ["", "a.b.c"])
async def test_gateway_without_a_valid_token_is_disconnected(served: Served, token: str) -> None:
    client = await WireClient.open(served.server.address)
    await client.receive()
    client.send(wire.Hello(version=wire.VERSION, sender="x", nonce=os.urandom(16), token=token))
    await client.wait_closed_by_node()
    assert served.loaders.num_loads == 0


async def test_call_before_the_handshake_closes_the_connection(served: Served) -> None:
    client = await WireClient.open(served.server.address)
    await client.receive()
    client.send(execute(1))
    await client.wait_closed_by_node()
    assert served.loaders.num_loads == 0


async def test_handshake_of_another_version_closes_the_connection(served: Served) -> None:
    client = await WireClient.open(served.server.address)
    hello = await client.receive()
    assert isinstance(hello, wire.Hello)
    nonce = os.urandom(16)
    token = service_keys().identity("gateway/gateway").sign("node/n1", (hello.nonce, nonce))
    client.send(wire.Hello(version=99, sender="x", nonce=nonce, token=token))
    await client.wait_closed_by_node()


async def test_replayed_handshake_is_rejected(served: Served) -> None:
    first = await WireClient.open(served.server.address)
    hello = await first.receive()
    assert isinstance(hello, wire.Hello)
    nonce = os.urandom(16)
    token = service_keys().identity("gateway/gateway").sign("node/n1", (hello.nonce, nonce))
    said = wire.Hello(version=wire.VERSION, sender="x", nonce=nonce, token=token)
    first.send(said)
    assert isinstance(await first.receive(), wire.Hello)
    second = await WireClient.open(served.server.address)
    second.send(said)
    await second.wait_closed_by_node()
    await first.close()


async def test_too_many_bytes_before_the_handshake_close_the_connection(served: Served) -> None:
    client = await WireClient.open(served.server.address)
    client.writer.write((10_000_000).to_bytes(4, "little") + b"x" * (module.MAX_HANDSHAKE_BYTES + 1))
    await client.wait_closed_by_node()


async def test_slow_handshake_is_disconnected_even_if_bytes_trickle(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(wire, "KEEPALIVE_INTERVAL_S", 0.05)
    client = await WireClient.open(served.server.address)
    client.writer.write(b"\xff\x00\x00")
    await asyncio.wait_for(client.wait_closed_by_node(), PATIENCE_S)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff",
        b"\x01\x00\x00\x00\xc1",
        b"GET / HTTP/1.1\r\n\r\n",
        wire.encode(wire.Pong()),
        wire.encode(wire.Hello(version=1, sender="x", nonce=b"n" * 16)),
    ],
)
async def test_protocol_violation_closes_only_its_connection(
    served: Served, client: WireClient, garbage: bytes
) -> None:
    other = await WireClient.connect(served.server.address)
    mine = await served.run_of(client, 1)
    others = await served.run_of(other, 1)
    client.writer.write(garbage)
    await client.wait_closed_by_node()
    assert mine.is_cancelled
    assert not others.is_cancelled
    others.say(Finished("stop"))
    assert await other.all_events(1) == [Finished("stop")]
    await other.close()


async def test_open_call_id_must_not_be_reused(served: Served, client: WireClient) -> None:
    run = await served.run_of(client, 1)
    client.send(execute(1))
    await client.wait_closed_by_node()
    assert run.is_cancelled


async def test_call_id_may_be_reused_after_its_end(served: Served, client: WireClient) -> None:
    for _ in range(2):
        (await served.run_of(client, 1)).say(Finished("stop"))
        assert await client.all_events(1) == [Finished("stop")]


async def test_cancelled_call_ends_with_its_usage(served: Served, client: WireClient) -> None:
    run = await served.run_of(client, 1)
    client.send(wire.Cancel(1))
    (failed,) = await client.all_events(1)
    assert isinstance(failed, Failed)
    assert (failed.reason, failed.usage.completion_tokens) == ("aborted", 2)
    assert run.is_cancelled
    client.send(wire.Cancel(1), wire.Cancel(99), wire.Ping())
    assert await client.receive() == wire.Pong(), "cancelling what has ended says nothing"


async def test_lost_connection_cancels_its_calls_at_once(served: Served, client: WireClient) -> None:
    run = await served.run_of(client, 1)
    await client.close()
    await wait_until(lambda: run.is_cancelled)
    assert len(served.calls) == 0


async def test_silent_gateway_loses_its_calls(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "KEEPALIVE_INTERVAL_S", 0.05)
    monkeypatch.setattr(wire, "KEEPALIVE_TIMEOUT_S", 0.3)
    client = await WireClient.connect(served.server.address)
    run = await served.run_of(client, 1)
    end = asyncio.get_running_loop().time() + 0.6
    while asyncio.get_running_loop().time() < end:
        client.send(wire.Ping())
        assert await client.receive() == wire.Pong()
        await asyncio.sleep(0.05)
    assert not run.is_cancelled, "pings keep it alive"
    await asyncio.wait_for(client.wait_closed_by_node(), PATIENCE_S)
    assert run.is_cancelled


async def test_gateway_that_does_not_read_is_disconnected_at_the_buffer_limit(
    served: Served, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 1 << 20)
    run = await served.run_of(client, 1)
    client.writer.transport.pause_reading()

    def say_more() -> bool:
        run.say(Token("x" * 10_000))
        return run.is_cancelled

    await wait_until(say_more, interval_s=0)
    assert len(served.calls) == 0


async def test_gateway_that_reads_nothing_is_disconnected_after_the_timeout(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNREAD_S", 0.1)
    monkeypatch.setattr(wire, "KEEPALIVE_INTERVAL_S", 0.05)
    client = await WireClient.connect(served.server.address)
    run = await served.run_of(client, 1)
    client.writer.transport.pause_reading()
    run.say(*[Token("x" * 10_000)] * 80)
    await wait_until(lambda: run.is_cancelled)
    await client.close()


async def test_closing_the_server_sends_pending_events(served: Served, client: WireClient) -> None:
    (await served.run_of(client, 1)).say(Token("last words"), Finished("stop"))
    await served.server.close()
    assert await client.all_events(1) == [Token("last words"), Finished("stop")]
    assert list(served.folder.iterdir()) == []


async def test_socket_of_a_running_node_is_kept_and_a_stale_one_is_replaced(
    served: Served, short_tmp_path: Path
) -> None:
    second = served.make_server("n2", None)
    with pytest.raises(CannotListen, match="another process"):
        await second.open(parse_address(served.server.address))
    stale = short_tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(stale))
    await second.open(parse_address(f"unix://{stale}"))
    assert stale.stat().st_mode & 0o077 == 0, "for this user only"
    await second.close()


async def test_tcp_connections_require_a_client_certificate(served: Served, tmp_path: Path) -> None:
    ca, node, gateway = certificates(tmp_path)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.verify_mode = ssl.CERT_REQUIRED
    server_side.load_cert_chain(*node)
    server_side.load_verify_locations(ca)
    server = served.make_server("n1", server_side)
    await server.open(parse_address("tcp://127.0.0.1:0"))
    mine = ssl.create_default_context(cafile=str(ca))
    mine.load_cert_chain(*gateway)
    client = await WireClient.connect(server.address, context=mine)
    client.send(wire.Ping())
    assert await client.receive() == wire.Pong()
    await client.close()
    untrusted = ssl.create_default_context(cafile=str(ca))
    with pytest.raises((Closed, ssl.SSLError, ConnectionError)):
        await WireClient.connect(server.address, context=untrusted)
    await server.close()
