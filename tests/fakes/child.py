"""Entry points of small child processes for the zygote's tests. They import nothing of the engine, so they start
fast."""

from __future__ import annotations

import socket
import sys
import time


def echo(connection: socket.socket, arguments: bytes) -> None:
    """Send back the arguments and everything that is received, until the other end closes."""
    connection.sendall(arguments)
    while data := connection.recv(65536):
        connection.sendall(data)


def deaf(_connection: socket.socket, _arguments: bytes) -> None:
    """Neither send nor receive, like a rank that is loading."""
    time.sleep(600)


def leaving(_connection: socket.socket, arguments: bytes) -> None:
    """Exit at once with the given exit code."""
    raise SystemExit(int(arguments))


def has_imported(connection: socket.socket, arguments: bytes) -> None:
    """Send True if the module with this name was imported before the fork."""
    connection.sendall(str(arguments.decode() in sys.modules).encode())
