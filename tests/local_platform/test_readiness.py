import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.protocol.status import NodeStatus, ReplicaStatus
from local_platform.readiness import is_gateway_ready, load_progress

MODEL = "@cf/test/chat"


def node(*states: str, detail: str = "") -> NodeStatus:
    replicas = tuple(ReplicaStatus(model=MODEL, revision="r", state=state, detail=detail) for state in states)  # type: ignore[arg-type]
    return NodeStatus(node_id="n", pop="p", address="unix:///x", replicas=replicas)


@pytest.fixture
async def server() -> AsyncIterator[tuple[list[bytes], tuple[str, int]]]:
    """A loopback server that answers every connection with the bytes in the list, and its address."""
    response = [b""]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response[0])
        await writer.drain()
        writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield response, running.sockets[0].getsockname()
    running.close()
    await running.wait_closed()


@pytest.mark.parametrize(
    ("response", "is_ready"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\n{}", False),
        (b"", False),
        (b"SSH-2.0-x\r\n", False),
        (b"HTTP/1.1\r\n\r\n", False),
    ],
)
async def test_gateway_is_ready_only_if_it_returns_200(
    response: bytes, is_ready: bool, server: tuple[list[bytes], tuple[str, int]]
):
    responses, address = server
    responses[0] = response
    assert await is_gateway_ready(*address) == is_ready


async def test_gateway_that_does_not_listen_is_not_ready():
    assert not await is_gateway_ready("127.0.0.1", 1)


def test_load_progress_lists_ready_and_failed_nodes():
    nodes = {"a": node("ready"), "b": node("loading"), "c": node("failed", detail="no weights"), "d": node()}
    found = load_progress(nodes, ["a", "b", "c", "d", "absent"], MODEL)
    assert found.ready == {"a"}
    assert found.failed == {"c": "no weights"}


def test_node_with_a_failed_and_a_ready_replica_is_ready():
    found = load_progress({"a": node("failed", "ready"), "b": node("failed", "loading")}, ["a", "b"], MODEL)
    assert found.ready == {"a"}
    assert found.failed == {}
