"""One inference request being answered, over plain ASGI: read the body, send an answer, notice that the client left.

The inference routes use this in place of request and response objects. Knows HTTP and nothing of inference.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from engine.protocol.api_format import ApiFormat
from gateway import envelope
from gateway.errors import ClientLeft, Reason, Refusal

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
Keep = Callable[[Headers, list[bytes] | None], Awaitable[None]]

_CLOSE = (b"connection", b"close")
_MAX_DISCARDED_BYTES = 64 * 1024  # a body left unread up to here does not cost the connection


class Connection(Protocol):
    """What the server lets the app do with a client's connection (`connection.py`)."""

    def on_disconnect(self, callback: Callable[[], None] | None) -> None: ...
    def mark_authenticated(self) -> None: ...
    def abort(self) -> None: ...


class RequestCycle(Protocol):
    """What the server lets the app do at once with a request and its answer (`cycle.py`)."""

    def take_body(self) -> bytes | None: ...
    def write_response(self, status: int, headers: Headers, body: bytes) -> bool: ...
    def write_chunk(self, data: bytes) -> bool: ...


class Exchange:
    """Request id, headers and the two ASGI callables of one request. `response_headers` grow on the way."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.request_id: str = scope["hearth.request_id"]
        self.headers: Headers = scope["headers"]
        self._by_name: dict[bytes, bytes] | None = None
        self.path: bytes = scope.get("raw_path", b"")
        self.query_string: bytes = scope["query_string"]
        self.peer: tuple[str, int] | None = scope.get("client")
        self.response_headers: Headers = []
        self.api_format = ApiFormat.NATIVE
        self.is_binding = False  # the client is a Worker's AI binding
        self.has_started = False
        self.error_frame: Callable[[Refusal], bytes] | None = None  # of a stream of events that has started
        self.store_response: Keep | None = None  # is given a whole answer, or none, before the last of it goes out
        self._kept_headers: Headers = []
        self._kept_parts: list[bytes] = []  # of a stream that is to be kept
        self._connection: Connection = scope["hearth.connection"]
        # Taken out: it knows the scope, and each would keep the other until the next garbage collection.
        self._cycle: RequestCycle = scope.pop("hearth.request_cycle")
        self._receive = receive
        self._send = send
        self._has_whole_body = False
        self._is_over = False  # all of an answer has been handed to the server
        self._loop = asyncio.get_running_loop()
        self._writing_since_s = 0.0  # 0 while nothing is being written
        self._stall_timer: asyncio.TimerHandle | None = None
        self._giving_up: asyncio.Task[None] | None = None

    def replace_request(self, scope: Scope) -> None:
        """The request turned out to carry another: its headers and its query are what counts."""
        self.headers = scope["headers"]
        self._by_name = None
        self.query_string = scope["query_string"]

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by its lower-case name."""
        if self._by_name is None:
            self._by_name = dict(reversed(self.headers))
        return self._by_name.get(name)

    def check_content_length(self, max_bytes: int) -> None:
        """Refuse by what the headers say, before anything is read. Raises Refusal."""
        encoding = self.header(b"content-encoding")
        if encoding is not None and encoding.strip().lower() not in (b"", b"identity", b"application/json"):
            raise Refusal(Reason.BODY_ENCODED)
        announced = self.header(b"content-length")
        if announced is not None and announced.isdigit() and int(announced) > max_bytes:
            raise Refusal(Reason.BODY_TOO_LARGE, str(max_bytes))

    async def read_body(self, max_bytes: int, timeout_s: float) -> bytes:
        """The whole body. Raises Refusal when it is too large, ClientLeft when it never ends: the client closed the
        connection, or was answered that it is too slow."""
        body = self._cycle.take_body()
        if body is None:
            timer = self._loop.call_later(timeout_s, self._give_up_on_body)
            try:
                body = await self._read_parts(max_bytes)
            finally:
                timer.cancel()
        if len(body) > max_bytes:
            raise Refusal(Reason.BODY_TOO_LARGE, str(max_bytes))
        self._has_whole_body = True
        return body

    def _give_up_on_body(self) -> None:
        self._giving_up = self._loop.create_task(self.send_error(Refusal(Reason.BODY_SLOW)))

    async def _read_parts(self, max_bytes: int) -> bytes:
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            body += message.get("body", b"")
            if len(body) > max_bytes:
                raise Refusal(Reason.BODY_TOO_LARGE, str(max_bytes))
            if not message.get("more_body"):
                return bytes(body)

    def mark_authenticated(self) -> None:
        """The credential that came is good: the connection counts as known from now on."""
        self._connection.mark_authenticated()

    def on_disconnect(self, callback: Callable[[], None] | None) -> None:
        """Call back if the client closes its connection; None when nobody waits for that any more."""
        self._connection.on_disconnect(callback)

    async def send_json(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a whole answer of JSON; a binding wants it without an envelope."""
        if self.is_binding and status == 200:
            body = envelope.unwrap(body)
        if self.store_response is not None and status == 200:
            await self.store_response([envelope.JSON_HEADER, *headers, *self.response_headers], [body])
        self.has_started = True
        length = (b"content-length", str(len(body)).encode())
        all_headers = [envelope.JSON_HEADER, length, *headers, *self.response_headers]
        await self._send_whole(status, all_headers, body)

    async def _send_whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Waits while the client does not read what it was sent before."""
        if not self._cycle.write_response(status, headers, body):
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})
        self._is_over = True

    async def send_parts(self, parts: AsyncIterator[bytes], client_stall_timeout_s: float) -> None:
        """Send a whole answer of JSON in parts. Should it break, the connection does: what was sent looks like no
        answer. A client that reads nothing for that long loses its connection."""
        self.has_started = True
        headers = [envelope.JSON_HEADER, *self.response_headers]
        self._watch_for_stall(client_stall_timeout_s)
        await self._send_in_time({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for part in parts:
                await self._send_in_time({"type": "http.response.body", "body": part, "more_body": True})
        except BaseException:
            self._connection.abort()
            raise
        await self._send_in_time({"type": "http.response.body", "body": b""})
        self._is_over = True

    async def send_stored(self, headers: Headers, body: bytes) -> None:
        """Send an answer that was kept."""
        self.has_started = True
        length = (b"content-length", str(len(body)).encode())
        await self._send_whole(200, [*headers, length, (b"idempotent-replayed", b"true")], body)

    async def send_empty(self, status: int, headers: Headers) -> None:
        """Send an answer without a body."""
        self.has_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": b""})
        self._is_over = True

    async def send_error(self, refusal: Refusal) -> None:
        """Send an error. The connection is closed where the refusal says so, and when much of the body is still to
        come."""
        headers = refusal.headers()
        if refusal.row.closes or (not self._has_whole_body and self._may_be_long()):
            headers.append(_CLOSE)
        with contextlib.suppress(ClientLeft):
            await self.send_json(
                refusal.row.status,
                envelope.error(refusal, self.api_format, self.request_id, is_binding=self.is_binding),
                headers,
            )

    def _may_be_long(self) -> bool:
        if self.header(b"transfer-encoding") is not None:
            return True
        announced = self.header(b"content-length")
        return announced is not None and not (announced.isdigit() and int(announced) <= _MAX_DISCARDED_BYTES)

    async def start_stream(self, client_stall_timeout_s: float) -> None:
        """Begin an event stream. A client that reads nothing for that long loses its connection, which then looks as
        if it had left."""
        self.has_started = True
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *self.response_headers,
        ]
        self._kept_headers = headers
        self._watch_for_stall(client_stall_timeout_s)
        await self._send_in_time({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send a piece of the stream; waits while the client does not read."""
        if self.store_response is not None:
            self._kept_parts.append(data)
        if self._cycle.write_chunk(data):
            return
        await self._send_in_time({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, data: bytes = b"", *, is_whole: bool = False) -> None:
        """Send the last piece; with `is_whole` the stream says all that was to be said."""
        if self.store_response is not None:
            keep, self.store_response = self.store_response, None
            await keep(self._kept_headers, [*self._kept_parts, data] if is_whole else None)
        await self._send_in_time({"type": "http.response.body", "body": data})
        self._is_over = True

    async def abort_response(self, refusal: Refusal) -> None:
        """An answer that has begun cannot go on: a stream of events ends with one that says so. Any other loses its
        connection, or its client would take what was sent for the whole."""
        if self._is_over:
            return
        if self.error_frame is None:
            self._connection.abort()
        else:
            await self.end_stream(self.error_frame(refusal))

    def close(self) -> None:
        """The exchange is over, however it ended: nothing watches it any more."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    async def _send_in_time(self, message: Message) -> None:
        self._writing_since_s = self._loop.time()
        await self._send(message)
        self._writing_since_s = 0.0

    def _watch_for_stall(self, timeout_s: float) -> None:
        """Look a few times per timeout: cheaper than a timer for each write."""
        if self._writing_since_s and self._loop.time() - self._writing_since_s >= timeout_s:
            self._connection.abort()
            return
        self._stall_timer = self._loop.call_later(timeout_s / 4, self._watch_for_stall, timeout_s)
