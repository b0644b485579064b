"""WebSocket: messages in both directions over a client connection, after its HTTP request was accepted.

Limits the size of messages and the number of unread bytes, responds to pings, and closes with a code. Frames are
parsed by wsproto, for a short time at once, because a flood of tiny frames takes seconds; extensions such as
compression are not offered. A client that does not read is disconnected by the connection's write deadline, and gets no
response to pings meanwhile.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from uvicorn.protocols.http.flow_control import FlowControl
from wsproto.connection import Connection as FrameConnection
from wsproto.connection import ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import LocalProtocolError, generate_accept_token

from gateway.errors import Reason, Refusal
from gateway.http.reading_turns import PARSE_S

MAX_MESSAGE_BYTES = 256 * 1024
MAX_PARTS = 4096  # fragments of one message
MAX_UNREAD_BYTES = 512 * 1024  # above which nothing more is read from the client
MESSAGE_BYTES = 512  # size that an unread message counts in addition to its content
CLOSE_TIMEOUT_S = 5.0  # for the client to respond to a close frame

_VERSION = b"13"
_MAX_REASON_BYTES = 120


class CloseCode(enum.IntEnum):
    """Codes with which the gateway closes a WebSocket."""

    NORMAL = 1000
    GOING_AWAY = 1001  # the idle limit or the total limit has passed
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003
    POLICY_VIOLATION = 1008  # the credential or the permission ended
    TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    SERVICE_RESTART = 1012
    TRY_AGAIN_LATER = 1013


class SocketEnded(Exception):
    """The WebSocket ends with this code. `is_from_client` is True if the client closed it or disconnected."""

    def __init__(self, code: int, reason: str = "", *, is_from_client: bool = False) -> None:
        super().__init__(f"{code} {reason}")
        self.code, self.reason, self.is_from_client = code, reason, is_from_client


class Upgradable(Protocol):
    """The methods of a client connection that a WebSocket uses."""

    @property
    def flow(self) -> FlowControl: ...
    def write(self, data: bytes) -> None: ...
    def resume_reading(self) -> None: ...
    def end_upgrade(self) -> None: ...


def accept_key(headers: Callable[[bytes], bytes | None]) -> bytes:
    """Return `sec-websocket-accept` for the headers of a request for a WebSocket. Raises Refusal."""
    key = headers(b"sec-websocket-key")
    tokens = [token.strip().lower() for token in (headers(b"connection") or b"").split(b",")]
    if b"upgrade" not in tokens or key is None or len(key) > 64:
        raise Refusal(Reason.HEADER_INVALID, "a WebSocket needs the headers Connection: Upgrade and Sec-WebSocket-Key")
    if headers(b"sec-websocket-version") != _VERSION:
        raise Refusal(Reason.HEADER_INVALID, "Sec-WebSocket-Version must be 13")
    return generate_accept_token(key)


class WebSocket:
    """One open WebSocket. One task calls `receive`; any task may call `send`."""

    def __init__(self, connection: Upgradable) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._frames = FrameConnection(ConnectionType.SERVER)
        self._unread: deque[bytes | str] = deque()
        self._num_unread = 0
        self._parts: list[bytes | str] = []
        self._num_parts = 0
        self._waiter: asyncio.Future[None] | None = None
        self._end: SocketEnded | None = None
        self._is_gone = False
        self._client_closed = asyncio.Event()
        self.last_received_s = self._loop.time()

    # ── from the connection ──

    def parse(self, data: bytes = b"") -> bool:
        """Parse data from the client. Return False if frames are left for the next call because parsing takes long."""
        if self._frames.state is ConnectionState.CLOSED:
            return True
        began_s = time.perf_counter()
        try:
            self._frames.receive_data(data)
            for event in self._frames.events():
                self._on_event(event)
                if time.perf_counter() - began_s > PARSE_S:
                    return False
        except LocalProtocolError:
            self.end(CloseCode.PROTOCOL_ERROR, "the client sent data after its close frame")
        return True

    @property
    def has_room(self) -> bool:
        """True if more may be read from the client."""
        return self._num_unread <= MAX_UNREAD_BYTES

    def connection_lost(self) -> None:
        """End the WebSocket because the connection is closed."""
        self._is_gone = True
        self._client_closed.set()
        self._finish(SocketEnded(1006, is_from_client=True))

    def _on_event(self, event: Event) -> None:
        self.last_received_s = self._loop.time()
        if isinstance(event, TextMessage | BytesMessage):
            self._add_part(event.data, is_last=event.message_finished)
        elif isinstance(event, Ping):
            if self._end is None and not self._connection.flow.write_paused:
                self._connection.write(self._frames.send(event.response()))
        elif isinstance(event, CloseConnection):
            self._client_closed.set()
            is_fault = self._frames.state is ConnectionState.OPEN
            code = int(event.code)
            self._finish(SocketEnded(code, event.reason or "", is_from_client=not is_fault))

    def _add_part(self, data: bytes | bytearray | str, *, is_last: bool) -> None:
        self._num_parts += len(data)
        if self._num_parts > MAX_MESSAGE_BYTES or len(self._parts) >= MAX_PARTS:
            limits = f"{MAX_MESSAGE_BYTES} bytes and {MAX_PARTS} fragments"
            self.end(CloseCode.TOO_BIG, f"a message may have at most {limits}")
            self._parts.clear()
            return
        if self._end is not None:
            return
        self._parts.append(bytes(data) if not isinstance(data, str) else data)
        if is_last:
            parts, self._parts = self._parts, []
            self._num_unread += self._num_parts + MESSAGE_BYTES
            self._num_parts = 0
            self._unread.append("".join(parts) if isinstance(parts[0], str) else b"".join(parts))  # type: ignore[arg-type]
            self._wake()

    # ── for the app ──

    async def receive(self) -> bytes | str:
        """Return the next message: bytes, or text. Raises SocketEnded once the WebSocket ends."""
        while not self._unread:
            if self._end is not None:
                raise self._end
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._end is not None and not self._end.is_from_client:
            raise self._end
        message = self._unread.popleft()
        had_room = self.has_room
        self._num_unread -= len(message) + MESSAGE_BYTES
        if self.has_room and not had_room:
            self._connection.resume_reading()
        return message

    async def send(self, message: bytes | dict[str, Any]) -> None:
        """Send bytes, or an object as JSON text. Waits while the client does not read. Raises SocketEnded."""
        if self._connection.flow.write_paused and not self._is_gone:
            await self._connection.flow.drain()
        if self._end is not None:
            raise self._end
        event: Event = (
            BytesMessage(message) if isinstance(message, bytes) else TextMessage(msgspec.json.encode(message).decode())
        )
        self._connection.write(self._frames.send(event))

    def end(self, code: int, reason: str = "") -> None:
        """Make `receive` and `send` raise SocketEnded with this code."""
        self._finish(SocketEnded(code, reason))

    async def close(self, code: int, reason: str = "") -> None:
        """Send a close frame, wait for the client's, and close the connection."""
        self._finish(SocketEnded(code, reason))
        if not self._is_gone:
            if self._frames.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
                short = reason.encode()[:_MAX_REASON_BYTES].decode("utf-8", "ignore")
                self._connection.write(self._frames.send(CloseConnection(code, short or None)))
            self._connection.resume_reading()
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._client_closed.wait()
            except TimeoutError:
                pass
        self._connection.end_upgrade()

    def _finish(self, end: SocketEnded) -> None:
        if self._end is None:
            self._end = end
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
