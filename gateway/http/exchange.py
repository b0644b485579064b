"""One HTTP exchange over plain ASGI: read the request body, send the response, notice a disconnect.

The inference routes use this instead of starlette's request and response objects, which cost too much on the hot path.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from engine.protocol.api_format import ApiFormat
from gateway import envelope
from gateway.errors import ClientLeft, Reason, Refusal
from gateway.http.web_socket import WebSocket, accept_key

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
StoreResponse = Callable[[Headers, list[bytes] | None], Awaitable[None]]

_CLOSE = (b"connection", b"close")


class Connection(Protocol):
    """The methods of a client connection (`connection.py`)."""

    @property
    def is_closing(self) -> bool: ...
    def on_disconnect(self, callback: Callable[[], None] | None) -> None: ...
    def mark_authenticated(self, party: str) -> None: ...
    def upgrade(self, accept_key: bytes, headers: Headers) -> WebSocket: ...
    def abort(self) -> None: ...


class RequestCycle(Protocol):
    """The methods of a request cycle (`request_cycle.py`); none of them waits."""

    def take_body(self) -> bytes | None: ...
    def write_response(self, status: int, headers: Headers, body: bytes) -> bool: ...
    def write_chunk(self, data: bytes) -> bool: ...


class Exchange:
    """One request and its response. The stages of a call add to `response_headers`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.request_id: str = scope["hearth.request_id"]
        self.method: str = scope["method"]
        self.headers: Headers = scope["headers"]
        self._by_name: dict[bytes, bytes] | None = None
        self.path: bytes = scope.get("raw_path", b"")
        self.query_string: bytes = scope["query_string"]
        self.peer: tuple[str, int] | None = scope.get("client")
        self.response_headers: Headers = []
        self.api_format = ApiFormat.NATIVE
        self.is_binding = False  # the client is a Worker's AI binding
        self.has_started = False
        self.error_frame: Callable[[Refusal], bytes] | None = None  # renders the last event of a stream that fails
        # Called before the last part is sent, with the headers and parts of a complete response, or with None if the
        # response is incomplete.
        self.store_response: StoreResponse | None = None
        self._stream_headers: Headers = []
        self._stream_parts: list[bytes] = []  # for `store_response`
        self._connection: Connection = scope["hearth.connection"]
        # The cycle refers to the scope. Removing the cycle from the scope avoids a reference cycle, so both are freed
        # without the garbage collector.
        self._request_cycle: RequestCycle = scope.pop("hearth.request_cycle")
        self._receive = receive
        self._send = send
        self._is_over = False  # the whole response has been passed to the server
        self._loop = asyncio.get_running_loop()
        self._timeout_response: asyncio.Task[None] | None = None

    def replace_request(self, scope: Scope) -> None:
        """Take headers and query from `scope`, after a wrapped request has been unwrapped."""
        self.headers = scope["headers"]
        self._by_name = None
        self.query_string = scope["query_string"]

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header, by its lower-case name."""
        if self._by_name is None:
            self._by_name = dict(reversed(self.headers))
        return self._by_name.get(name)

    def check_content_length(self, max_bytes: int) -> None:
        """Raise Refusal if the headers announce a body that is too large."""
        length = self.header(b"content-length")
        if length is not None and length.isdigit() and int(length) > max_bytes:
            raise Refusal(Reason.BODY_TOO_LARGE, str(max_bytes))

    def check_content_encoding(self) -> None:
        """Raise Refusal if the body is encoded. Old versions of the binding's client send its media type instead."""
        for name, value in self.headers:
            if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity", b"application/json"):
                raise Refusal(Reason.BODY_ENCODED)

    async def read_body(self, max_bytes: int, timeout_s: float) -> bytes:
        """Return the whole body.

        Raises Refusal if the body is too large. Raises ClientLeft if the client disconnects, or if the body does not
        arrive within `timeout_s` seconds; the 408 response has been sent then.
        """
        body = self._request_cycle.take_body()
        if body is None:
            timer = self._loop.call_later(timeout_s, self._time_out_body)
            try:
                body = await self._read_parts(max_bytes)
            finally:
                timer.cancel()
        if len(body) > max_bytes:
            raise Refusal(Reason.BODY_TOO_LARGE, str(max_bytes))
        return body

    def _time_out_body(self) -> None:
        self._timeout_response = self._loop.create_task(self.send_error(Refusal(Reason.BODY_SLOW)))

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

    def mark_authenticated(self, party: str) -> None:
        """Count the connection as one of this party instead of an unauthenticated connection. Raises Refusal if the
        party has too many."""
        self._connection.mark_authenticated(party)

    def on_disconnect(self, callback: Callable[[], None] | None) -> None:
        """Set the callback for a disconnect; None removes it."""
        self._connection.on_disconnect(callback)

    @property
    def is_web_socket(self) -> bool:
        """True if the client asks for a WebSocket."""
        return (self.header(b"upgrade") or b"").lower() == b"websocket"

    def check_web_socket(self) -> None:
        """Raise Refusal if the headers of a request for a WebSocket are invalid."""
        accept_key(self.header)

    def accept_web_socket(self) -> WebSocket:
        """Accept the request for a WebSocket. Raises Refusal, and ClientLeft if the client has disconnected."""
        key = accept_key(self.header)
        if self._connection.is_closing:
            raise ClientLeft
        self.has_started = self._is_over = True
        return self._connection.upgrade(key, self.response_headers)

    async def send_whole(
        self, status: int, body: bytes, headers: Headers, content_type: tuple[bytes, bytes] = envelope.JSON_HEADER
    ) -> None:
        """Send a whole response, JSON unless `content_type` is another header. Workers AI bindings get successful
        responses without the envelope."""
        if self.is_binding and status == 200:
            body = envelope.unwrap(body)
        if self.store_response is not None and status == 200:
            await self.store_response([content_type, *headers, *self.response_headers], [body])
        self.has_started = True
        length = (b"content-length", str(len(body)).encode())
        all_headers = [content_type, length, *headers, *self.response_headers]
        await self._write_whole(status, all_headers, body)

    async def _write_whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response; wait while the client does not read earlier data."""
        if not self._request_cycle.write_response(status, headers, body):
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})
        self._is_over = True

    async def send_parts(self, parts: AsyncIterator[bytes]) -> None:
        """Send a JSON response in parts. The connection is aborted if `parts` fails, so that the client does not take
        the beginning for the whole."""
        self.has_started = True
        headers = [envelope.JSON_HEADER, *self.response_headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for part in parts:
                await self._send({"type": "http.response.body", "body": part, "more_body": True})
        except BaseException:
            self._connection.abort()
            raise
        await self._send({"type": "http.response.body", "body": b""})
        self._is_over = True

    async def send_stored(self, headers: Headers, body: bytes) -> None:
        """Send a stored response."""
        self.has_started = True
        length = (b"content-length", str(len(body)).encode())
        await self._write_whole(200, [*headers, length, (b"idempotent-replayed", b"true")], body)

    async def send_empty(self, status: int, headers: Headers) -> None:
        """Send a response without a body."""
        self.has_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": b""})
        self._is_over = True

    async def send_error(self, refusal: Refusal) -> None:
        """Send an error response. The connection is closed if the error requires it."""
        headers = refusal.headers()
        if refusal.row.closes:
            headers.append(_CLOSE)
        with contextlib.suppress(ClientLeft):
            await self.send_whole(
                refusal.row.status,
                envelope.error(refusal, self.api_format, self.request_id, is_binding=self.is_binding),
                headers,
            )

    async def start_stream(self, media_type: str = "text/event-stream") -> None:
        """Start a stream, by default one of events."""
        self.has_started = True
        headers = [
            (b"content-type", media_type.encode()),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *self.response_headers,
        ]
        self._stream_headers = headers
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send a chunk of the stream; wait while the client does not read."""
        if self.store_response is not None:
            self._stream_parts.append(data)
        if self._request_cycle.write_chunk(data):
            return
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, data: bytes = b"", *, is_whole: bool = False) -> None:
        """Send the last chunk. `is_whole` says that the stream is complete and may be stored."""
        if self.store_response is not None:
            store_response, self.store_response = self.store_response, None
            await store_response(self._stream_headers, [*self._stream_parts, data] if is_whole else None)
        await self._send({"type": "http.response.body", "body": data})
        self._is_over = True

    async def abort_response(self, refusal: Refusal) -> None:
        """End a response that has started and cannot continue.

        A stream of events ends with an error event. For any other response the connection is aborted, so that the
        client does not take the beginning for the whole.
        """
        if self._is_over:
            return
        if self.error_frame is None:
            self._connection.abort()
        else:
            await self.end_stream(self.error_frame(refusal))
