"""One gateway's connection: handshake, then Executes, Cancels and Pings in, events and Pongs out.

Messages of one event-loop turn, such as a whole engine step, leave in one write. A peer that violates the protocol, is
silent, or does not read its events loses its connection, and its calls end immediately.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from engine.node.call_trace import begin_trace, end_trace
from engine.protocol import wire
from engine.protocol.events import Event, Failed, Finished
from engine.serving.calls import Call, Calls
from telemetry.coalescing_writer import CoalescingWriter

if TYPE_CHECKING:
    from service_identity.service_identity import ServiceIdentity
    from service_identity.service_tokens import Service
    from telemetry.tracing import Tracing

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
MAX_HANDSHAKE_BYTES = 16 * 1024
MAX_UNSENT_BYTES = 16 * 1024 * 1024  # limit for events that a gateway has not read
MAX_UNREAD_S = 15.0  # for which a gateway may leave its events unread
MIN_NONCE_BYTES = 16

_ENDS = (Finished, Failed)  # a `Finished | Failed` in isinstance would build a union for every event


class Connection(asyncio.Protocol):
    """The node's end of one connection, registered in `connections` while it exists. Both ends authenticate with
    service tokens that `identity` signs and verifies. `manage` makes or begins a change of the node and returns why it
    cannot, or ""."""

    def __init__(
        self,
        calls: Calls,
        identity: ServiceIdentity,
        node_id: str,
        connections: set[Connection],
        manage: Callable[[wire.Manage], str],
        tracing: Tracing | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = calls
        self._identity = identity
        self._node_id = node_id
        self._service: Service | None = None
        self._connections = connections
        self._manage = manage
        self._tracing = tracing
        self._nonce = os.urandom(32)
        self._decoder = wire.FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._open: dict[int, Call] = {}
        self._writer = CoalescingWriter(on_written=self._drop_if_unread)
        self._is_authenticated = False
        self._num_handshake_bytes = 0
        self._made_s = self._received_s = self._loop.time()
        self._check_due_s = self._made_s
        self._paused_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.peer = ""
        self.is_lost: asyncio.Future[None] = self._loop.create_future()

    # ── the socket ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport class is not a subclass of asyncio's.
        self._transport = self._writer.transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        self._schedule_check(self._loop.time())
        self._send(wire.Hello(version=wire.VERSION, sender=self._node_id, nonce=self._nonce))

    def data_received(self, data: bytes) -> None:
        self._received_s = self._loop.time()
        try:
            if not self._is_authenticated:
                self._num_handshake_bytes += len(data)
                if self._num_handshake_bytes > MAX_HANDSHAKE_BYTES:
                    raise wire.WireError(f"more than {MAX_HANDSHAKE_BYTES} bytes before the end of the handshake")
            for message in self._decoder.feed(data):
                self._handle(message)
        except wire.WireError as error:
            self.drop(str(error))

    def pause_writing(self) -> None:
        self._paused_s = self._loop.time()

    def resume_writing(self) -> None:
        self._paused_s = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        calls, self._open = self._open, {}
        for call in calls.values():
            call.abandon()
        if self._is_authenticated:
            logger.info("gateway disconnected", extra={"gateway": self.peer, "num_calls": len(calls), "why": repr(exc)})
        self._connections.discard(self)
        self.is_lost.set_result(None)

    def drop(self, why: str) -> None:
        """Close immediately without sending pending data."""
        logger.warning("gateway dropped", extra={"gateway": self.peer, "why": why})
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close after sending pending data."""
        self._writer.flush()
        if self._transport is not None:
            self._transport.close()

    # ── messages in ──

    def _handle(self, message: wire.Message) -> None:
        if isinstance(message, wire.Hello):
            self._authenticate(message)
        elif not self._is_authenticated:
            raise wire.WireError("the first message was not a Hello")
        elif isinstance(message, wire.Execute):
            self._execute(message)
        elif isinstance(message, wire.Cancel):
            call = self._open.get(message.call_id)
            if call is not None:
                call.cancel()
        elif isinstance(message, wire.Manage):
            logger.info(
                "gateway manages", extra={"gateway": self.peer, "action": message.action, "model": message.model}
            )
            self._send(wire.Managed(message.request_id, self._manage(message)))
        elif isinstance(message, wire.Ping):
            self._send(wire.Pong())
        else:
            raise wire.WireError("unexpected message type")

    def _authenticate(self, hello: wire.Hello) -> None:
        if self._is_authenticated:
            raise wire.WireError("a second Hello")
        if hello.version != wire.VERSION:
            raise wire.WireError(f"the gateway uses protocol version {hello.version}, this node {wire.VERSION}")
        if len(hello.nonce) < MIN_NONCE_BYTES:
            raise wire.WireError("the peer's nonce is too short")
        nonces = (self._nonce, hello.nonce)
        self._service = self._identity.verify_token(hello.token, {"gateway"}, nonces)
        token = self._identity.sign(self._service.subject, nonces) if self._service is not None else ""
        if not token:
            raise wire.WireError("the peer sent no valid service token, or this node has no valid key to sign its own")
        self._is_authenticated = True
        self.peer = hello.sender[:64]
        self._send(wire.Hello(version=wire.VERSION, sender=self._node_id, nonce=self._nonce, token=token))
        logger.info("gateway connected", extra={"gateway": self.peer})

    def _execute(self, execute: wire.Execute) -> None:
        call_id = execute.call_id
        if call_id in self._open:
            raise wire.WireError("a call id was used twice on one connection")

        tracing = self._tracing if execute.traceparent else None
        trace = None if tracing is None else begin_trace(tracing, execute, self._node_id)

        def emit(event: Event) -> None:
            if isinstance(event, _ENDS):
                self._open.pop(call_id, None)
                if trace is not None:
                    end_trace(trace, event)
            self._send(wire.Reply(call_id, event))

        call = self._calls.begin(execute, emit)
        if call is not None:
            self._open[call_id] = call

    # ── messages out ──

    def _send(self, message: wire.Message) -> None:
        self._writer.write(wire.encode(message))

    def _drop_if_unread(self) -> None:
        if self._transport is not None and self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.drop(f"more than {MAX_UNSENT_BYTES} bytes are unread")

    def _check(self) -> None:
        """Check every second that the peer is authenticated, not revoked, alive, and reading."""
        now = self._loop.time()
        # A process that was stopped must not mistake its own pause for the gateway's silence.
        self._received_s += max(0.0, now - self._check_due_s)
        silent_s = now - self._received_s
        if not self._is_authenticated and now - self._made_s > HANDSHAKE_TIMEOUT_S:
            self.drop("no handshake")
        elif silent_s > wire.KEEPALIVE_TIMEOUT_S:
            self.drop(f"silent for {silent_s:.1f} s")
        elif self._service is not None and not self._identity.is_still_valid(self._service):
            self.drop("the service key or the gateway was revoked, or the key expired")
        elif self._paused_s is not None and now - self._paused_s > MAX_UNREAD_S:
            self.drop(f"read nothing for {MAX_UNREAD_S:g} s")
        else:
            self._schedule_check(now)

    def _schedule_check(self, now: float) -> None:
        self._check_due_s = now + wire.KEEPALIVE_INTERVAL_S
        self._timer = self._loop.call_at(self._check_due_s, self._check)
