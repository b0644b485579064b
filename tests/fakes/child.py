"""Entry points of small children that a test can have a zygote fork; nothing of the engine's, so quick to import."""

from __future__ import annotations

import socket
import time


def echo(connection: socket.socket, arguments: bytes) -> None:
    """Send the arguments back, then what is received, until the other end closes."""
    connection.sendall(arguments)
    while data := connection.recv(65536):
        connection.sendall(data)


def deaf(_connection: socket.socket, _arguments: bytes) -> None:
    """Say nothing and hear nothing, as a rank does while it loads."""
    time.sleep(600)


def leaving(_connection: socket.socket, arguments: bytes) -> None:
    """End at once with the exit code it is given."""
    raise SystemExit(int(arguments))
