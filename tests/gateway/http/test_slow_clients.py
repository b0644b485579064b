"""Clients that read slowly, or not at all, or leave: none of them holds a connection, and none causes an error."""

import contextlib
import select
import socket
import time
from collections.abc import Iterator

import pytest

from tests.gateway.http.test_framing import BODY, LENGTH, exchange_raw, post, statuses
from tests.gateway.process import GatewayProcess
from tests.gateway.site import Running
from tests.waiting import PATIENCE_S, wait_until_blocking

DOCUMENT = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"  # its response is large
STALL_TIMEOUT_S = 1.0
MAX_UNAUTHENTICATED = 10


@pytest.fixture(scope="module")
def strict(running: Running) -> Iterator[Running]:
    """Yield a gateway with short timeouts."""
    with running.beside(HEARTH_CLIENT_STALL_TIMEOUT_S=str(STALL_TIMEOUT_S), HEARTH_CALL_TIMEOUT_S="60") as gateway:
        yield Running(running.site, gateway)


@pytest.fixture
def connections() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def connect(stack: contextlib.ExitStack, gateway: GatewayProcess) -> socket.socket:
    """Return a connection with a small receive buffer, which fills at once if the client does not read."""
    connection = stack.enter_context(contextlib.closing(socket.socket()))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE_S)
    connection.connect(("127.0.0.1", gateway.port))
    return connection


def is_closed_by_gateway(connection: socket.socket) -> bool:
    """Return True if the peer has closed or reset the connection. Reads nothing."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def assert_no_errors(gateway: GatewayProcess) -> None:
    assert gateway.metric("hearth_internal_errors_total") == 0
    assert not [line for line in gateway.log_lines() if line["level"] in ("error", "critical")]


@pytest.mark.parametrize(
    ("request_bytes", "is_authenticated"),
    [(DOCUMENT, False), (DOCUMENT.replace(b"openapi.json", b"docs/docs.js"), False), (DOCUMENT, True)],
    ids=["anonymous, large responses", "anonymous, small responses", "authenticated"],
)
def test_client_that_never_reads_is_disconnected(
    strict: Running, connections: contextlib.ExitStack, request_bytes: bytes, is_authenticated: bool
):
    connection = connect(connections, strict.gateway)
    if is_authenticated:
        connection.sendall(post(strict, LENGTH))
        assert statuses(connection.recv(65536)) == [200]
    with contextlib.suppress(ConnectionError):
        connection.sendall(request_bytes * 90)
    wait_until_blocking(lambda: is_closed_by_gateway(connection))
    assert_no_errors(strict.gateway)


def test_client_that_closes_its_side_and_never_reads_is_disconnected(
    strict: Running, connections: contextlib.ExitStack
):
    connection = connect(connections, strict.gateway)
    connection.sendall(DOCUMENT * 40 + DOCUMENT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    wait_until_blocking(lambda: is_reset(connection))
    assert_no_errors(strict.gateway)


def is_reset(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


def test_slow_client_that_keeps_reading_gets_the_whole_response(strict: Running, connections: contextlib.ExitStack):
    connection = connect(connections, strict.gateway)
    connection.sendall(DOCUMENT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") * 1)
    began_s, heard = time.monotonic(), b""
    while data := connection.recv(8192):
        heard += data
        time.sleep(0.1)
    assert time.monotonic() - began_s > 1.5 * STALL_TIMEOUT_S, "the response was too short for this test"
    head, _, body = heard.partition(b"\r\n\r\n")
    assert b"content-length: %d\r\n" % len(body) in head + b"\r\n"


def test_responses_in_progress_count_as_unauthenticated_connections(
    running: Running, connections: contextlib.ExitStack
):
    with running.beside(
        HEARTH_MAX_UNAUTHENTICATED_CONNECTIONS=str(MAX_UNAUTHENTICATED),
        HEARTH_HEAD_TIMEOUT_S="1",
        HEARTH_CLIENT_STALL_TIMEOUT_S="600",
    ) as gateway:
        opened = [connect(connections, gateway) for _ in range(30)]
        for connection in opened:
            connection.sendall(DOCUMENT * 90)
        wait_until_blocking(lambda: sum(not is_closed_by_gateway(each) for each in opened) <= MAX_UNAUTHENTICATED)
        good = Running(running.site, gateway)
        assert statuses(exchange_raw(good, post(good, LENGTH, b"Connection: close"))) == [200]
        assert_no_errors(gateway)


def test_client_that_leaves_during_pipelined_responses_is_no_error(strict: Running, connections: contextlib.ExitStack):
    for number in range(20):
        connection = connect(connections, strict.gateway)
        connection.sendall(DOCUMENT * 50 + post(strict, LENGTH) * 3)
        if number % 2:
            connection.recv(65536)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close with a reset
        connection.close()
    assert statuses(exchange_raw(strict, post(strict, LENGTH, b"Connection: close"))) == [200]
    assert_no_errors(strict.gateway)


def test_pipelined_requests_beyond_the_limit_close_the_connection(strict: Running):
    heard = exchange_raw(strict, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 5000)
    found = statuses(heard)
    assert set(found) == {200}
    assert 100 <= len(found) < 500
    assert_no_errors(strict.gateway)


def test_error_of_a_pipelined_request_does_not_interrupt_an_earlier_response(
    strict: Running, connections: contextlib.ExitStack
):
    connection = connect(connections, strict.gateway)
    invalid = b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"
    connection.sendall(DOCUMENT * 30 + invalid)
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65536):
            heard += data
    found = heard.split(b"HTTP/1.1 ")[1:]
    assert found
    for response in found:
        assert response.startswith(b"200 OK\r\n")
        head, _, body = response.partition(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert len(body) == length
    assert BODY not in heard


def test_gateway_stops_in_time_although_a_client_never_reads(running: Running, connections: contextlib.ExitStack):
    with running.beside(HEARTH_CLIENT_STALL_TIMEOUT_S="600") as gateway:
        connection = connect(connections, gateway)
        connection.sendall(DOCUMENT * 90)
        assert connection.recv(1)
        gateway.terminate()
        assert gateway.wait(30) == 0
        assert not [line for line in gateway.log_lines() if line["level"] in ("error", "critical")]
