"""Data that is slow to parse, such as tiny chunks and frames, takes its turns and does not delay other requests.

The tests send much of such data and make good calls meanwhile. All of these must be served while the data is still
being parsed, whatever the speed of the machine is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from gateway.http.web_socket import MAX_PARTS
from storage.database import Database
from tenants.credentials import api_tokens
from tests.gateway.http.test_framing import CHUNKED_BODY, exchange_raw, post, statuses
from tests.gateway.process import LISTENER, PEPPER, GatewayProcess
from tests.gateway.site import ACCOUNT_READ, Running
from tests.waiting import PATIENCE_S
from tests.web_socket import WebSocketClient

NUM_CONNECTIONS = 8
NUM_CALLS = 10


def repeated(piece: bytes, num_bytes: int) -> bytes:
    return piece * (num_bytes // len(piece))


@contextlib.contextmanager
def sent(gateway: GatewayProcess, data: bytes) -> Iterator[list[socket.socket]]:
    """Send data on some connections while the block runs."""
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", gateway.port)
        opened = [stack.enter_context(socket.create_connection(address, PATIENCE_S)) for _ in range(NUM_CONNECTIONS)]
        senders = [threading.Thread(target=send, args=(each, data)) for each in opened]
        for sender in senders:
            sender.start()
        yield opened
        for each in opened:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for sender in senders:
            sender.join(PATIENCE_S)


def send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the gateway may refuse the data
        connection.sendall(data)


def call(running: Running, num_calls: int) -> None:
    """Make good calls, each on a new connection."""
    for _ in range(num_calls):
        response = httpx.get(f"{running.account_url}/ai/models/search", headers=running.headers(), timeout=PATIENCE_S)
        assert response.status_code == 200, response.text


def test_tiny_chunks_do_not_delay_other_requests(running: Running):
    with running.beside(HEARTH_BODY_TIMEOUT_S="60") as gateway:
        body = repeated(b"1\r\n \r\n", 250_000) + CHUNKED_BODY
        request = post(running, b"Transfer-Encoding: chunked", body=body)
        quick = Running(running.site, gateway)
        call(quick, 1)
        with sent(gateway, request) as opened:
            call(quick, NUM_CALLS)
            assert not select.select(opened, [], [], 0)[0], "the chunks were parsed before the calls were served"


@pytest.mark.parametrize("message", [b"\x82\x80abcd", b"\x89\x80abcd"], ids=["empty messages", "pings"])
def test_tiny_frames_do_not_delay_other_requests(running: Running, message: bytes):
    call(running, 1)
    with WebSocketClient(f"{running.account_url}/ai/run/{LISTENER}", running.tenants.secrets["good"]) as client:
        client.receive_until("session.started")
        sender = threading.Thread(target=send, args=(client.socket, repeated(message, 1_000_000) + b"\x81\x81abcd?"))
        sender.start()
        call(running, NUM_CALLS)
        with contextlib.suppress(BlockingIOError):
            client.socket.setblocking(False)
            while data := client.socket.recv(65536):
                assert b"\x88" not in data, (
                    "the last message, which is invalid, was parsed before the calls were served"
                )
        client.socket.setblocking(True)
        client.socket.shutdown(socket.SHUT_RDWR)
        sender.join(PATIENCE_S)


def test_message_of_too_many_fragments_closes_with_too_big(running: Running):
    with WebSocketClient(f"{running.account_url}/ai/run/{LISTENER}", running.tenants.secrets["good"]) as client:
        client.receive_until("session.started")
        client.send_raw(b"\x02\x80abcd" + b"\x00\x80abcd" * MAX_PARTS)
        client.receive_all()
        assert client.closed is not None
        assert client.closed[0] == 1009


@pytest.mark.parametrize(
    "path", ["/admin/sign-in/password", "/admin/sign-in/link", "/client/v4/nodes/enroll", "/client/v4/nodes/ring"]
)
def test_body_of_a_request_without_a_credential_must_be_small(running: Running, path: str):
    """Such a body is parsed before anything is known about the client."""
    body = json.dumps({"token": "x", "email": [[]] * 2000}).encode()
    lines = b"Sec-Fetch-Site: same-origin\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    heard = exchange_raw(running, b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\n" % path.encode() + lines + body)
    assert statuses(heard) == [413]


def test_account_has_a_share_of_the_connections(running: Running):
    async def make_other_reader() -> str:
        database = Database.connect(running.site.database_url)
        try:
            account_id = running.tenants.other_account_id
            return (await api_tokens.create(database, PEPPER, account_id, "reads", [ACCOUNT_READ])).secret
        finally:
            await database.close()

    running.tenants.secrets["other reader"] = asyncio.run(make_other_reader())
    with (
        running.beside(HEARTH_MAX_AUTHENTICATED_CONNECTIONS="12") as gateway,
        contextlib.ExitStack() as stack,
    ):

        def status_of(whose: str, account_id: str) -> int:
            client = stack.enter_context(httpx.Client(timeout=PATIENCE_S))
            url = f"{gateway.base_url}/accounts/{account_id}/ai/usage/alerts"
            return client.get(url, headers=running.headers(whose)).status_code

        own, other = running.tenants.account_id, running.tenants.other_account_id
        running.tenants.secrets["own reader"] = running.tenants.secrets["scopeless"]
        assert [status_of("own reader", own) for _ in range(10)] == [200] * 8 + [429] * 2
        assert status_of("other reader", other) == 200
        stack.close()
        assert status_of("own reader", own) == 200
