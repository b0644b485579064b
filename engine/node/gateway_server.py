"""The node's server for gateways: accepts their connections, with mutual TLS between machines."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from engine.node.connection import Connection
from engine.node.settings import NodeSettings
from engine.protocol.wire import Manage
from engine.serving.addresses import Address
from engine.serving.calls import Calls
from engine.serving.http_server import BACKLOG, CannotListen, bind, bound_address, remove_socket_file

if TYPE_CHECKING:
    from service_identity.service_identity import ServiceIdentity
    from telemetry.tracing import Tracing

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
_CLOSE_TIMEOUT_S = 2.0


class GatewayServer:
    """Accepts gateways that authenticate to `identity`. `address` is the bound address, once it listens."""

    def __init__(
        self,
        calls: Calls,
        identity: ServiceIdentity,
        node_id: str,
        context: ssl.SSLContext | None,
        manage: Callable[[Manage], str],
        tracing: Tracing | None = None,
    ) -> None:
        self._calls = calls
        self._identity = identity
        self._node_id = node_id
        self._context = context
        self._manage = manage
        self._tracing = tracing
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self.address = ""

    async def open(self, address: Address) -> None:
        """Start to listen. Raises CannotListen."""
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
        """Send pending replies, then close every connection."""
        if self._server is not None:
            self._server.close()
        remove_socket_file(self.address)
        closing = list(self._connections)
        for connection in closing:
            connection.close()
        if closing:
            await asyncio.wait([connection.is_lost for connection in closing], timeout=_CLOSE_TIMEOUT_S)
        for connection in list(self._connections):
            connection.drop("the node is shutting down")

    def _accept(self) -> asyncio.BaseProtocol:
        if len(self._connections) >= MAX_CONNECTIONS:
            logger.warning("connection refused", extra={"num_connections": len(self._connections)})
            return _RefusedConnection()
        return Connection(self._calls, self._identity, self._node_id, self._connections, self._manage, self._tracing)


class _RefusedConnection(asyncio.Protocol):
    """A connection beyond MAX_CONNECTIONS, closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()  # uvloop's transports do not inherit from asyncio's


def tls_context(settings: NodeSettings) -> ssl.SSLContext | None:
    """Return the context for mutual TLS, or None if it is not configured. Raises CannotListen for unusable files."""
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
