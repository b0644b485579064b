"""The fault proxy injects exactly the requested faults."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.proxy import FaultProxy
from tests.waiting import wait_until_blocking


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that echoes all bytes."""
    listener = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                opened.append(connection)
                threading.Thread(target=repeat, args=(connection,), daemon=True).start()

    def repeat(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(65536):
                connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for connection in opened:
        connection.close()


@pytest.fixture
def proxy(echo: tuple[str, int]) -> Iterator[FaultProxy]:
    with FaultProxy(echo) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as client:
        yield client


def exchange(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return receive(client, len(data))


def receive(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (more := client.recv(size - len(found))):
        found += more
    return found


def test_proxy_without_faults_forwards_bytes_and_eof(client: socket.socket, proxy: FaultProxy):
    data = bytes(range(256)) * 1000
    assert exchange(client, data) == data
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    wait_until_blocking(lambda: proxy.num_connections == 0)


def test_partitioned_bytes_are_delivered_after_healing(client: socket.socket, proxy: FaultProxy):
    assert exchange(client, b"one") == b"one"
    proxy.partition()
    client.sendall(b"two")
    client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.recv(1)
    proxy.heal()
    client.settimeout(60)
    assert receive(client, 3) == b"two"


def test_black_hole_drops_bytes_silently(client: socket.socket, proxy: FaultProxy):
    proxy.drop_silently()
    client.sendall(b"one")
    wait_until_blocking(lambda: proxy.to_server.num_dropped == 3)
    client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.recv(1)
    proxy.heal()
    client.settimeout(60)
    assert exchange(client, b"two") == b"two"


def test_cut_resets_the_connection_mid_message(client: socket.socket, proxy: FaultProxy):
    proxy.to_client.cut_after = 5
    client.sendall(b"0123456789")
    found = b""
    with contextlib.suppress(ConnectionResetError):  # may arrive before the data
        while more := client.recv(100):
            found += more
    assert b"01234".startswith(found)
    assert proxy.to_client.num_bytes == 5


def test_only_the_reply_is_lost(client: socket.socket, proxy: FaultProxy):
    proxy.lose_response(lambda data: b"write" in data)
    assert exchange(client, b"read") == b"read"
    client.sendall(b"write")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert (proxy.num_lost_responses, proxy.to_server.num_bytes) == (1, 9)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as second:
        assert exchange(second, b"write") == b"write", "a second response was lost"


def test_delay_rate_chunking_and_corruption(client: socket.socket, proxy: FaultProxy):
    proxy.delay(0.05, 0.01)
    began_s = time.monotonic()
    assert exchange(client, b"x") == b"x"
    assert time.monotonic() - began_s >= 0.1
    proxy.heal()
    proxy.to_client.bytes_per_s, proxy.to_client.piece_bytes = 1000, 10
    began_s = time.monotonic()
    assert exchange(client, b"y" * 100) == b"y" * 100
    assert time.monotonic() - began_s >= 0.1
    proxy.heal()
    proxy.to_server.flip_after = 1
    assert exchange(client, b"abc") == bytes([97, 98 ^ 0xFF, 99])
    assert exchange(client, b"abc") == b"abc"


def test_resets_refused_and_half_open_connections(client: socket.socket, proxy: FaultProxy):
    assert exchange(client, b"one") == b"one"
    proxy.half_close()
    assert client.recv(1) == b""
    client.sendall(b"still sent ")
    wait_until_blocking(lambda: proxy.to_server.num_bytes == 14)
    proxy.refuses = True
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as second:  # noqa: PT012
        second.sendall(b"x")
        assert second.recv(1) == b"x"
    proxy.heal()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as third:
        assert exchange(third, b"x") == b"x"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            third.recv(1)


def test_unix_sockets_are_forwarded(echo: tuple[str, int], short_tmp_path: Path):
    path = short_tmp_path / "proxy.sock"
    with FaultProxy(echo, path) as first, FaultProxy(path) as second:
        with socket.create_connection(("127.0.0.1", second.port), timeout=60) as client:
            assert exchange(client, b"through both") == b"through both"
        assert (first.num_opened, second.num_opened) == (1, 1)
