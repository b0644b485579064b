"""NodeLink: the multiplexed connection from this gateway to one node, with handshake, keepalive and reconnects.

A link lives as long as its node is known; its connection can come and go. Events of a call go to the call's inbox.
Knows frames and call ids, not calls or placement.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from engine.protocol import wire
from gateway.nodes.inbox import Inbox
from telemetry.coalescing_writer import CoalescingWriter

if TYPE_CHECKING:
    from service_identity.service_identity import ServiceIdentity
    from service_identity.service_tokens import Service

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
HANDSHAKE_TIMEOUT_S = 5.0
# Received bytes count as a sign of life if they complete a message or are at least this many: after a corrupted length
# the decoder would wait forever for the rest of the message, while small messages keep arriving.
_MIN_PART_BYTES = 1024
SUSPECT_S = 2.5  # longest silence of a healthy node: more than two keepalive intervals
NUM_ROUND_TRIPS = 10  # measurements; the shortest counts, because a busy process only lengthens them
MIN_ROUND_TRIPS = 3  # before the shortest is used: the first is measured while many connections are opened
MIN_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0
MAX_UNSENT_BYTES = 64 * 1024 * 1024  # to a node that does not read
# Messages per write: the node can work on the first of a burst while the gateway builds the others.
_MAX_UNSENT = 16


class NodeLost(Exception):
    """The connection to the node was lost, with every call on it."""


class NodeRefused(Exception):
    """The node refused a change; the message says why."""


class _Connection(asyncio.Protocol):
    """One open connection: the handshake, then replies to the inboxes of their calls."""

    def __init__(self, node_id: str, pop: str, sender: str, identity: ServiceIdentity) -> None:
        loop = asyncio.get_running_loop()
        self._node_id = node_id
        self._pop = pop
        self._sender = sender
        self._identity = identity
        self.service: Service | None = None  # set once the node's token is verified
        self._nonce = os.urandom(16)
        self._node_nonce: bytes | None = None
        self._decoder = wire.FrameDecoder()
        self._loop = loop
        self._writer = CoalescingWriter(max_pending=_MAX_UNSENT)
        self.is_proven: asyncio.Future[None] = loop.create_future()
        self.is_closed: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.Transport | None = None
        self.inboxes: dict[int, Inbox] = {}
        self.changes: dict[int, asyncio.Future[str]] = {}  # request id of a Manage -> its error, "" for success
        self.last_received_s = loop.time()
        self._ping_sent_s: float | None = None
        self.round_trips_s: deque[float] = deque(maxlen=NUM_ROUND_TRIPS)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = self._writer.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now_s = self._loop.time()
        if len(data) >= _MIN_PART_BYTES:
            self.last_received_s = now_s
        try:
            for message in self._decoder.feed(data):
                self.last_received_s = now_s
                if type(message) is wire.Reply:
                    self._deliver(message, now_s)
                else:
                    self._handle_control(message)
        except wire.WireError as error:
            self.close(error)

    def _deliver(self, reply: wire.Reply, now_s: float) -> None:
        inbox = self.inboxes.get(reply.call_id)
        if inbox is not None:
            inbox.put(reply.event, now_s)
            if inbox.has_ended:
                del self.inboxes[reply.call_id]

    def _handle_control(self, message: wire.Message) -> None:
        if isinstance(message, wire.Hello):
            self._shake_hands(message)
        elif isinstance(message, wire.Managed):
            change = self.changes.get(message.request_id)
            if change is not None and not change.done():
                change.set_result(message.error)
        elif isinstance(message, wire.Pong):
            if self._ping_sent_s is not None:
                self.round_trips_s.append(time.monotonic() - self._ping_sent_s)
                self._ping_sent_s = None
        else:
            raise wire.WireError("the node sent a message that only gateways send")

    def _shake_hands(self, hello: wire.Hello) -> None:
        if hello.version != wire.VERSION:
            raise wire.WireError(f"the node speaks version {hello.version}, this gateway speaks {wire.VERSION}")
        if self._node_nonce is None:
            self._node_nonce = hello.nonce
            token = self._identity.sign(f"node/{self._node_id}", (hello.nonce, self._nonce))
            self.send(wire.Hello(version=wire.VERSION, sender=self._sender, nonce=self._nonce, token=token))
        elif hello.nonce == self._node_nonce:
            self._authenticate(hello)
            if not self.is_proven.done():
                self.is_proven.set_result(None)
        else:
            raise wire.WireError("the node changed its nonce during the handshake")

    def _authenticate(self, hello: wire.Hello) -> None:
        """Verify that the peer is the node, in the PoP, that its presence names. Raises WireError."""
        service = self._identity.verify_token(hello.token, {"node"}, (hello.nonce, self._nonce))
        if service is None or service.name != self._node_id:
            raise wire.WireError("the node sent no valid service token of its own")
        if service.pop not in ("", self._pop):
            raise wire.WireError(
                f"the node's service key is bound to PoP {service.pop}, its presence names {self._pop}"
            )
        self.service = service

    @property
    def is_still_valid(self) -> bool:
        """Return True unless the node's service key has been revoked or has expired since the handshake."""
        return self.service is None or self._identity.is_still_valid(self.service)

    def send(self, message: wire.Message) -> None:
        """Send a message, together with others of this turn of the event loop. On a closing connection it is dropped:
        the loss is reported to each call right after."""
        self._writer.write(wire.encode(message))

    def ping(self) -> None:
        """Send a Ping, and measure the round trip if the last one has been answered."""
        if self._ping_sent_s is None:
            self._ping_sent_s = time.monotonic()  # the event loop's clock may have a resolution of milliseconds
        self.send(wire.Ping())

    def close(self, error: Exception | None = None) -> None:
        """Close the connection at once. `error` is raised to the coroutine that awaits the handshake."""
        if error is not None and not self.is_proven.done():
            self.is_proven.set_exception(error)
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_proven.done():
            self.is_proven.set_exception(exc or NodeLost())
        if not self.is_closed.done():
            self.is_closed.set_result(None)
        self.lose_calls()

    def lose_calls(self) -> None:
        """Fail every call that is still running."""
        inboxes, self.inboxes = self.inboxes, {}
        for inbox in inboxes.values():
            inbox.fail(NodeLost())
        for change in self.changes.values():
            if not change.done():
                change.set_exception(NodeLost())


class NodeLink:
    """The link to one node. `tokens_in_flight` are the estimated tokens of this gateway's running calls on the node.

    With `tls`, a `tcp://` node must present a certificate for its host, and receives the gateway's. While the link is
    open, the node has authenticated with a service token of its own, signed by a key that is bound to `pop` or to no
    PoP. `on_suspicion` is called each second in which the node has been silent for SUSPECT_S.
    """

    def __init__(
        self,
        node_id: str,
        address: str,
        *,
        pop: str,
        sender: str,
        identity: ServiceIdentity,
        on_change: Callable[[], None],
        on_suspicion: Callable[[str], None] = lambda _node_id: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.node_id = node_id
        self._identity = identity
        self.pop = pop
        self.address = address
        self._tls = tls
        self.tokens_in_flight = 0
        self._sender = sender
        self._on_change = on_change
        self._on_suspicion = on_suspicion
        self._connection: _Connection | None = None
        self._next_call_id = 1

    @property
    def is_open(self) -> bool:
        """True if calls can be sent now."""
        return self._connection is not None

    @property
    def round_trip_s(self) -> float | None:
        """The shortest of the last round trips in seconds, or None before MIN_ROUND_TRIPS are measured."""
        measured = () if self._connection is None else self._connection.round_trips_s
        return min(measured) if len(measured) >= MIN_ROUND_TRIPS else None

    @property
    def keeps_no_content(self) -> bool:
        """True: nodes wipe what a call with zero data retention computed."""
        return True

    @property
    def proven_pop(self) -> str:
        """The PoP that the node's service key is bound to, or "" if it is bound to none or the link is closed."""
        service = self._connection.service if self._connection is not None else None
        return service.pop if service is not None else ""

    def execute(self, make_execute: Callable[[int], wire.Execute], inbox: Inbox) -> int:
        """Send a call; its events go to `inbox`. Return the call's id on this link. Raises NodeLost."""
        connection = self._connection
        if connection is None:
            raise NodeLost
        transport = connection.transport
        assert transport is not None
        if transport.is_closing() or transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            raise NodeLost
        call_id = self._next_call_id
        self._next_call_id += 1
        connection.inboxes[call_id] = inbox
        connection.send(make_execute(call_id))
        return call_id

    def cancel(self, call_id: int) -> None:
        """Ask the node to stop a call. Its last event still reaches the inbox. No effect on a call that has ended."""
        if self._connection is not None and call_id in self._connection.inboxes:
            self._connection.send(wire.Cancel(call_id))

    async def manage(self, action: wire.ManageAction, model: str, timeout_s: float) -> None:
        """Ask the node for a change and wait until it has been made or has begun. Raises NodeRefused, NodeLost,
        TimeoutError."""
        connection = self._connection
        if connection is None:
            raise NodeLost
        request_id = self._next_call_id
        self._next_call_id += 1
        change = connection.changes[request_id] = asyncio.get_running_loop().create_future()
        connection.send(wire.Manage(request_id, action, model))
        try:
            async with asyncio.timeout(timeout_s):
                error = await change
        finally:
            del connection.changes[request_id]
        if error:
            raise NodeRefused(error)

    def forget(self, call_id: int) -> None:
        """Ignore further events of a call."""
        if self._connection is not None:
            self._connection.inboxes.pop(call_id, None)

    async def run(self) -> None:
        """Keep the connection open until cancelled."""
        backoff_s = MIN_BACKOFF_S
        while True:
            try:
                connection = await self._connect()
                backoff_s = MIN_BACKOFF_S
                await self._keep_alive(connection)
            except (OSError, TimeoutError, wire.WireError, NodeLost) as error:
                log.warning("node connection failed", extra={"node_id": self.node_id, "why": repr(error)})
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.5))  # noqa: S311 - spreads gateways, guards nothing
            backoff_s = min(MAX_BACKOFF_S, backoff_s * 2)

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        kind, _, rest = self.address.partition("://")

        def make() -> _Connection:
            return _Connection(self.node_id, self.pop, self._sender, self._identity)

        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if kind == "unix":
                _, connection = await loop.create_unix_connection(make, rest)
            else:
                host, _, port = rest.rpartition(":")
                _, connection = await loop.create_connection(make, host.strip("[]"), int(port), ssl=self._tls)
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                await connection.is_proven
        except BaseException:
            connection.close()
            raise
        return connection

    async def _keep_alive(self, connection: _Connection) -> None:
        """Ping until the node falls silent or the connection closes."""
        log.info("node connected", extra={"node_id": self.node_id})
        self._connection = connection
        self._on_change()
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        try:
            while not connection.is_closed.done():
                now_s = loop.time()
                # If this process was suspended, its own delay must not count as the node's silence.
                connection.last_received_s += max(0.0, now_s - due_s)
                due_s = now_s + wire.KEEPALIVE_INTERVAL_S
                if now_s - connection.last_received_s > wire.KEEPALIVE_TIMEOUT_S:
                    log.warning("node is silent", extra={"node_id": self.node_id})
                    break
                if not connection.is_still_valid:
                    log.warning("node's service key is no longer valid", extra={"node_id": self.node_id})
                    break
                if now_s - connection.last_received_s > SUSPECT_S:
                    self._on_suspicion(self.node_id)
                connection.ping()
                await asyncio.wait([connection.is_closed], timeout=wire.KEEPALIVE_INTERVAL_S)
        finally:
            self._connection = None
            connection.close()
            connection.lose_calls()
            self._on_change()
            log.info("node disconnected", extra={"node_id": self.node_id})
