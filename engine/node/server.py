"""The node's doors: the multiplexed connection for gateways and the plain HTTP one, each on a socket of its own.

A Unix socket is for this user only; a stale one is taken over, a living one never. Between machines TCP wants mutual
TLS, which the settings bring. Knows how to listen, not what is said.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from engine.node.connection import Connection
from engine.node.settings import NodeSettings
from engine.serving.addresses import Address
from engine.serving.calls import Calls

if TYPE_CHECKING:
    from service_identity.service_identity import ServiceIdentity

logger = logging.getLogger(__name__)

BACKLOG = 512
MAX_CONNECTIONS = 512
MAX_HTTP_CONNECTIONS = 128
_CLOSE_TIMEOUT_S = 2.0


class CannotListen(Exception):
    """An address is taken or cannot be bound; the text is one line for the operator."""


class GatewayDoor:
    """Accepts gateways that authenticate to `identity`. `address` is where it really listens."""

    def __init__(
        self,
        calls: Calls,
        identity: ServiceIdentity,
        node_id: str,
        context: ssl.SSLContext | None,
    ) -> None:
        self._calls = calls
        self._identity = identity
        self._node_id = node_id
        self._context = context
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def open(self, address: Address) -> None:
        """Raises CannotListen."""
        listening = bind(address)
        self.address = str(bound_address(listening, address))
        loop = asyncio.get_running_loop()
        if address.path is not None:
            self._server = await loop.create_unix_server(self._accept, sock=listening, backlog=BACKLOG)
        else:
            self._server = await loop.create_server(self._accept, sock=listening, backlog=BACKLOG, ssl=self._context)
            if self._context is None and not address.is_local:
                logger.warning("gateways connect without TLS; set HEARTH_TLS_CERT, _KEY and _CA between machines")

    async def close(self) -> None:
        """Send what was said, then close every connection."""
        if self._server is not None:
            self._server.close()
        _remove_socket_file(self.address)
        leaving = list(self._connections)
        for connection in leaving:
            connection.close()
        if leaving:
            await asyncio.wait([connection.is_lost for connection in leaving], timeout=_CLOSE_TIMEOUT_S)
        for connection in list(self._connections):
            connection.drop("the node has gone")

    def _accept(self) -> asyncio.BaseProtocol:
        if len(self._connections) >= MAX_CONNECTIONS:
            logger.warning("a connection was refused", extra={"num_connections": len(self._connections)})
            return _Refusal()
        return Connection(self._calls, self._identity, self._node_id, self._connections)


class _Refusal(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()  # uvloop's own class is no subclass of asyncio's


class HttpServer:
    """Serves an ASGI application on one address; leaves signals alone. `max_connections` None sets no limit."""

    def __init__(self, app: Any, max_connections: int | None = MAX_HTTP_CONNECTIONS) -> None:
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
        self._server = _QuietServer(config)
        self._task: asyncio.Task[None] | None = None
        self.address = ""

    async def open(self, address: Address) -> None:
        """Raises CannotListen."""
        listening = bind(address)
        self.address = str(bound_address(listening, address)).replace("tcp://", "http://", 1)
        self._task = asyncio.create_task(self._server.serve([listening]))

    async def close(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        _remove_socket_file(self.address)


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The node answers signals itself."""
        yield


def bind(address: Address) -> socket.socket:
    """A socket that holds `address`, not yet listening. Raises CannotListen."""
    family = socket.AF_UNIX if address.path is not None else socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if address.path is not None:
            _remove_stale(address)
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
    """`address` with the port that was really taken."""
    return address if address.path is not None else Address(host=address.host, port=bound.getsockname()[1])


def _remove_stale(address: Address) -> None:
    """Take away the socket file of a process that is gone. Raises CannotListen when somebody answers there."""
    assert address.path is not None
    if not address.path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(address.path))
        except OSError:
            address.path.unlink(missing_ok=True)
            return
    raise CannotListen(f"cannot listen on {address}: another process does")


def _remove_socket_file(address: str) -> None:
    if address.startswith("unix://"):
        Path(address.removeprefix("unix://")).unlink(missing_ok=True)


def tls_context(settings: NodeSettings) -> ssl.SSLContext | None:
    """Mutual TLS as the settings say; None without. Raises CannotListen for files that cannot be used."""
    if settings.tls_cert is None or settings.tls_ca is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
        context.load_verify_locations(settings.tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise CannotListen(f"HEARTH_TLS_CERT, HEARTH_TLS_KEY or HEARTH_TLS_CA cannot be used: {error}") from error
    return context
