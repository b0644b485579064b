"""Connections behind trusted reverse proxies: limits count the proxy's clients, never the proxy."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.gateway.http.test_framing import is_open, statuses
from tests.gateway.http.test_slow_clients import DOCUMENT, connect, is_closed_by_gateway
from tests.gateway.process import GatewayProcess
from tests.gateway.site import Running
from tests.waiting import PATIENCE_S, wait_until_blocking

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def behind_proxy(running: Running) -> Iterator[GatewayProcess]:
    """Yield a gateway that trusts this machine as a proxy and allows 5 unauthenticated connections per client."""
    with running.beside(
        HEARTH_TRUSTED_PROXIES="127.0.0.1",
        HEARTH_MAX_UNAUTHENTICATED_CONNECTIONS="5",
        HEARTH_HEAD_TIMEOUT_S="0.5",
        HEARTH_CLIENT_STALL_TIMEOUT_S="600",
    ) as gateway:
        yield gateway


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def test_idle_connections_of_a_trusted_proxy_stay_open(behind_proxy: GatewayProcess, stack: contextlib.ExitStack):
    connections = []
    for number in range(40):
        connection = stack.enter_context(
            contextlib.closing(socket.create_connection(("127.0.0.1", behind_proxy.port), PATIENCE_S))
        )
        connections.append(connection)
        if number % 2:
            connection.sendall(HEALTH.replace(b"\r\n\r\n", b"\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n"))
            assert statuses(connection.recv(65536)) == [200]
    # A half head on a last connection shows that the limits have been checked since.
    last = stack.enter_context(
        contextlib.closing(socket.create_connection(("127.0.0.1", behind_proxy.port), PATIENCE_S))
    )
    last.sendall(HEALTH[:20])
    assert statuses(last.recv(65536)) == [408]
    assert all(is_open(connection) for connection in connections)


@pytest.mark.parametrize("client", [b"192.0.2.7", b"198.51.100.1, 192.0.2.7, 127.0.0.1", b"2001:db8::%x"])
def test_requests_in_progress_count_for_the_client_behind_the_proxy(
    behind_proxy: GatewayProcess, stack: contextlib.ExitStack, client: bytes
):
    """The addresses of an IPv6 network of 64 bits are one client."""

    def slow(address: bytes) -> socket.socket:
        connection = connect(stack, behind_proxy)
        connection.sendall(DOCUMENT.replace(b"\r\n\r\n", b"\r\nX-Forwarded-For: %s\r\n\r\n" % address))
        return connection

    others = [slow(b"203.0.113.%d" % number) for number in range(20)]
    same = [slow(client % number if b"%" in client else client) for number in range(20)]
    wait_until_blocking(lambda: sum(not is_closed_by_gateway(each) for each in same) <= 5)
    assert not any(is_closed_by_gateway(each) for each in others)
