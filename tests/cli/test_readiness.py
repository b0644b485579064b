import asyncio
from collections.abc import AsyncIterator

import pytest

from cli.readiness import http_get, is_gateway_ready, progress_of
from engine.protocol.status import NodeStatus, ReplicaStatus

MODEL = "@cf/test/chat"


def node(*states: str, detail: str = "") -> NodeStatus:
    replicas = tuple(ReplicaStatus(model=MODEL, revision="r", state=state, detail=detail) for state in states)  # type: ignore[arg-type]
    return NodeStatus(node_id="n", pop="p", address="unix:///x", replicas=replicas)


@pytest.fixture
async def server() -> AsyncIterator[tuple[list[bytes], tuple[str, int]]]:
    """A loopback server that answers every connection with the bytes in the list; its address."""
    answer = [b""]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer[0])
        await writer.drain()
        writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield answer, running.sockets[0].getsockname()
    running.close()
    await running.wait_closed()


async def test_status_and_body_of_an_answer(server: tuple[list[bytes], tuple[str, int]]):
    answer, address = server
    answer[0] = b"HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\n{}"
    assert await http_get(address, "/readyz") == (503, b"{}")
    assert not await is_gateway_ready(*address)
    answer[0] = b"HTTP/1.1 200 OK\r\n\r\n"
    assert await is_gateway_ready(*address)


async def test_what_is_no_http_counts_as_no_answer(server: tuple[list[bytes], tuple[str, int]]):
    answer, address = server
    for answer[0] in (b"", b"SSH-2.0-x\r\n", b"HTTP/1.1\r\n\r\n"):
        assert await http_get(address, "/readyz") is None


async def test_nobody_there_counts_as_no_answer():
    assert await http_get("/no/such/socket", "/readyz") is None
    assert await http_get(("127.0.0.1", 1), "/readyz") is None


def test_a_node_is_done_when_it_holds_the_model_hot_and_has_failed_when_it_says_so():
    nodes = {"a": node("ready"), "b": node("loading"), "c": node("failed", detail="no weights"), "d": node()}
    now = progress_of(nodes, ["a", "b", "c", "d", "absent"], MODEL)
    assert now.hot == {"a"}
    assert now.failed == {"c": "no weights"}


def test_a_model_that_failed_once_and_is_hot_now_is_hot():
    now = progress_of({"a": node("failed", "ready"), "b": node("failed", "loading")}, ["a", "b"], MODEL)
    assert now.hot == {"a"}
    assert now.failed == {}
