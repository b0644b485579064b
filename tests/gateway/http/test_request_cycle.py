"""Request cycle without a server: the number of writes, and invalid responses."""

import asyncio
import gc
import logging
import weakref
from typing import Any

import pytest

from gateway.http.exchange import Exchange
from gateway.http.request_cycle import RequestCycle
from gateway.http.write_deadline import Flow


class Transport:
    """Records the data written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def cycle(**scope: Any) -> tuple[RequestCycle, Transport]:
    transport: Any = Transport()
    made = RequestCycle(
        scope={"method": "POST", "http_version": "1.1", "headers": [], **scope},
        transport=transport,
        flow=Flow(transport),
        logger=logging.getLogger(),
        access_logger=logging.getLogger(),
        access_log=False,
        default_headers=[(b"date", b"today")],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=scope.get("http_version") != "1.0",
        on_response=lambda: None,
    )
    return made, transport


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def test_whole_response_is_one_write_with_the_shared_headers():
    made, transport = cycle(**{"hearth.response_headers": [(b"x-request-id", b"7")]})
    await made.send(start((b"content-length", b"2")))
    await made.send(body(b"ok"))
    await asyncio.sleep(0)
    head = b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\nx-request-id: 7\r\n\r\n"
    assert transport.writes == [head + b"ok"]
    assert (made.response_complete, made.scope["hearth.status"]) == (True, 200)


async def test_stream_head_is_sent_with_the_first_chunk_or_at_the_end_of_the_turn():
    made, transport = cycle()
    await made.send(start())
    assert made.write_chunk(b"one")
    assert transport.writes == [b"HTTP/1.1 200 OK\r\ndate: today\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n"]
    made, transport = cycle()
    await made.send(start())
    await asyncio.sleep(0)
    assert len(transport.writes) == 1
    await made.send(body(b"one", more=True))
    await made.send(body(b""))
    assert transport.writes[1:] == [b"3\r\none\r\n", b"0\r\n\r\n"]


async def test_http_1_0_response_is_not_chunked():
    made, transport = cycle(http_version="1.0")
    await made.send(start())
    await made.send(body(b"one", more=True))
    await made.send(body(b"two"))
    assert b"".join(transport.writes).endswith(b"\r\nconnection: close\r\n\r\nonetwo")
    assert transport.is_closed


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb", b"a\x00b", b"a\x7f"])
async def test_header_with_a_control_character_is_rejected(value: bytes):
    made, transport = cycle()
    with pytest.raises(RuntimeError, match="header"):
        await made.send(start((b"x-hearth-model", value)))
    await asyncio.sleep(0)
    assert transport.writes == []


@pytest.mark.parametrize("sent", [[b"too long"], [b"s"], [b"to", b"o"], [b"o", b""]])
async def test_body_must_match_its_content_length(sent: list[bytes]):
    made, _ = cycle()
    await made.send(start((b"content-length", b"2")))
    for piece in sent[:-1]:
        await made.send(body(piece, more=True))
    with pytest.raises(RuntimeError, match="content-length"):
        await made.send(body(sent[-1]))


async def test_head_response_has_the_length_and_no_body():
    made, transport = cycle(method="HEAD")
    await made.send(start((b"content-length", b"2")))
    await made.send(body(b"ok"))
    assert transport.writes[0].endswith(b"content-length: 2\r\n\r\n")
    assert made.response_complete


async def test_complete_body_is_taken_once_without_waiting():
    made, _ = cycle()
    made.body += b"half"
    assert made.take_body() is None
    made.body += b" and half"
    made.more_body = False
    assert made.take_body() == b"half and half"
    assert made.take_body() == b""
    made, transport = cycle()
    made.more_body, made.waiting_for_100_continue = False, True
    assert made.take_body() is None, "100 Continue has not been sent yet"
    made, _ = cycle()
    made.more_body, made.disconnected = False, True
    assert made.take_body() is None
    assert transport.writes == []


async def test_whole_response_is_written_at_once_or_not_at_all():
    made, transport = cycle()
    assert made.write_response(200, [(b"content-length", b"2")], b"ok")
    assert transport.writes == [b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\n\r\nok"]
    assert made.response_complete
    assert not made.write_response(200, [(b"content-length", b"2")], b"ok"), "there is one answer"
    for refuses in ("is read slowly", "has no reader"):
        made, transport = cycle()
        made.disconnected = refuses == "has no reader"
        if not made.disconnected:
            made.flow.pause_writing()
        assert not made.write_response(200, [(b"content-length", b"2")], b"ok")
        assert (transport.writes, made.response_started) == ([], False)


async def test_completed_request_is_freed_without_garbage_collection():
    made, transport = cycle(headers=[], query_string=b"")
    remembered = weakref.ref(made)
    made.scope |= {"hearth.request_id": "x", "hearth.connection": None, "hearth.request_cycle": made}
    gc.disable()
    try:
        await Exchange(made.scope, made.receive, made.send).send_whole(200, b"{}", [])
        del made
        assert remembered() is None
    finally:
        gc.enable()
    assert transport.writes[0].endswith(b"{}")


async def test_large_body_is_written_without_a_copy_for_each_client():
    made, transport = cycle()
    content = bytes(100_000)
    assert made.write_response(200, [(b"content-length", b"100000")], content)
    head, written = transport.writes
    assert head.endswith(b"\r\n\r\n")
    assert written is content
