"""Closed connections are freed at once, without a garbage collection: a flood of them must not fill the memory."""

import asyncio
import gc
import weakref
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.http.connection import Connection, ConnectionServices
from gateway.http.connection_limiter import ConnectionLimiter
from gateway.http.lingering_close import LingeringClose
from gateway.http.reading_turns import ReadingTurns
from gateway.http.write_deadline import WriteDeadline
from tests.waiting import wait_until

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"


SLOW = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"


async def respond(scope: Any, receive: Any, send: Any) -> None:
    """Respond to a request: on /slow when the client has left, on /socket with a WebSocket."""
    del scope["hearth.request_cycle"]  # as `Exchange` does
    if scope["path"] == "/socket":
        await scope["hearth.connection"].upgrade(b"key", []).close(1000)
        return
    while scope["path"] == "/slow" and (await receive())["type"] != "http.disconnect":
        pass
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        GET,
        GET + b"\r\n",
        GET + b"a:\r\n" * 10_000,
        CHUNKED,
        CHUNKED + b"0\r\n" + b"a:\r\n" * 20_000,
        SLOW + (GET + b"\r\n") * 5 + GET,
        b"GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ],
    ids=[
        "nothing",
        "half a head",
        "whole request",
        "many headers",
        "half a body",
        "many trailers",
        "pipelined requests",
        "WebSocket",
    ],
)
async def test_closed_connection_is_freed_without_a_garbage_collection(sent: bytes) -> None:
    shared = ConnectionServices(
        ConnectionLimiter(10, 100, 100), WriteDeadline(10), LingeringClose(), ReadingTurns(), None, lambda _origin: []
    )
    config, connections = uvicorn.Config(respond, ws="none", lifespan="off", log_config=None), []

    def connect() -> Connection:
        connection = Connection(shared, config=config, server_state=ServerState(), app_state={})
        connections.append(weakref.ref(connection))
        return connection

    server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0)
    gc.collect()
    gc.disable()
    try:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(sent)
        if sent.endswith(b"\r\n\r\n"):
            assert (await reader.readexactly(9)) == b"HTTP/1.1 "
        else:
            await asyncio.sleep(0.05)
        writer.close()
        await wait_until(lambda: connections[0]() is None, 5)
    finally:
        gc.enable()
        server.close()
