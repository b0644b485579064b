"""Exchange without a server: freed memory and aborted responses."""

import gc
import weakref
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway import app
from gateway.http.exchange import Exchange
from gateway.routing import Access, Route
from storage.errors import StoreUnavailable


class IdleConnection:
    """A client that stays connected and sends nothing."""

    def __init__(self) -> None:
        self.is_aborted = False

    def on_disconnect(self, callback: Any) -> None:
        pass

    def abort(self) -> None:
        self.is_aborted = True


class BlockedCycle:
    """A request cycle that can write nothing without waiting, so that the ASGI callables are used."""

    def take_body(self) -> None:
        return None

    def write_response(self, _status: int, _headers: Any, _body: bytes) -> bool:
        return False

    def write_chunk(self, _data: bytes) -> bool:
        return False


def exchange() -> Exchange:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        pass

    scope = {
        "hearth.request_id": "x", "method": "POST", "headers": [], "raw_path": b"/", "query_string": b"",
        "hearth.connection": IdleConnection(), "hearth.request_cycle": BlockedCycle(),
    }  # fmt: skip
    return Exchange(scope, receive, send)


async def test_disconnected_stream_leaves_no_reference():
    abandoned = exchange()
    await abandoned.start_stream()
    remembered = weakref.ref(abandoned)
    del abandoned
    gc.collect()
    assert remembered() is None


async def test_connection_is_aborted_when_a_part_fails(monkeypatch: pytest.MonkeyPatch):
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one,two\n"
        raise StoreUnavailable("the database is away")

    async def export(_services: Any, _request: Request) -> Response:
        return StreamingResponse(pieces(), media_type="text/csv")

    monkeypatch.setattr(app, "ROUTES", (Route("GET", "/export", Access.PUBLIC, export),))
    settings = SimpleNamespace(cors_origins="", metrics_listen="", has_access_log=False, pop="local", allowed_hosts="")
    built = app.build_app(SimpleNamespace(settings=settings))  # type: ignore[arg-type]
    connection, sent = IdleConnection(), []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"spec_version": "2.4"}, "method": "GET", "http_version": "1.1", "path": "/export",
        "raw_path": b"/export", "query_string": b"", "headers": [(b"host", b"x")], "hearth.connection": connection,
        "hearth.request_cycle": BlockedCycle(),
    }  # fmt: skip
    await built(scope, receive, send)
    assert [message.get("body") for message in sent] == [None, b"one,two\n"]
    assert sent[-1]["more_body"], "the response has no end"
    assert connection.is_aborted
