"""Listening sockets, and an HTTP server for an ASGI application.

A Unix socket is accessible to this user only. The socket file of a process that has exited is replaced; one that is
in use is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from engine.serving.addresses import Address

BACKLOG = 512
MAX_CONNECTIONS = 128


class CannotListen(Exception):
    """An address cannot be bound. The message is for the operator, on one line."""


class HttpServer:
    """Serves an ASGI application on one address, without handling signals. `max_connections` None is unlimited."""

    def __init__(self, app: Any, max_connections: int | None = MAX_CONNECTIONS) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            http="httptools",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=max_connections,
            backlog=BACKLOG,
            timeout_graceful_shutdown=1,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None
        self.address = ""

    async def open(self, address: Address) -> None:
        """Start to listen. Raises CannotListen."""
        listening = bind(address)
        self.address = str(bound_address(listening, address)).replace("tcp://", "http://", 1)
        self._task = asyncio.create_task(self._server.serve([listening]))

    async def close(self) -> None:
        """Close all connections."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        remove_socket_file(self.address)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield


def bind(address: Address) -> socket.socket:
    """Return a socket that is bound to `address` and does not listen yet. Raises CannotListen."""
    family = socket.AF_UNIX if address.path is not None else socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if address.path is not None:
            _remove_stale_socket(address, address.path)
            address.path.parent.mkdir(parents=True, exist_ok=True)
            mask = os.umask(0o177)  # this user only
            try:
                bound.bind(str(address.path))
            finally:
                os.umask(mask)
        else:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((address.host, address.port))
    except BaseException as error:
        bound.close()
        if isinstance(error, OSError):
            raise CannotListen(f"cannot listen on {address}: {error.strerror or error}") from error
        raise
    bound.setblocking(False)
    return bound


def bound_address(bound: socket.socket, address: Address) -> Address:
    """Return `address` with the port that was assigned."""
    return address if address.path is not None else Address(host=address.host, port=bound.getsockname()[1])


def remove_socket_file(address: str) -> None:
    """Delete the file of a Unix socket; does nothing for other addresses."""
    if address.startswith("unix://"):
        Path(address.removeprefix("unix://")).unlink(missing_ok=True)


def _remove_stale_socket(address: Address, path: Path) -> None:
    """Delete the socket file of a process that has exited. Raises CannotListen if another process accepts there."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise CannotListen(f"cannot listen on {address}: another process does")
