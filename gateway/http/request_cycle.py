"""uvicorn's request-response cycle with fewer writes and without ASGI overhead on the hot path.

The app finds the cycle as `scope["hearth.request_cycle"]` and can take a buffered body or write a whole response
directly, without awaiting the ASGI callables.

The response head is sent together with the first chunk of the body: every write costs a system call and may wake the
client. If no chunk follows at once, the head is sent at the end of the same event-loop turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.http.exchange import Headers, Message, Scope
from gateway.http.write_deadline import Flow

_CONTROL = bytes(sorted({*range(32), 127} - set(b"\t\r\n")))
_BODILESS = (204, 304)
_LARGE_BYTES = 64 * 1024  # a body that is written apart from the head, because joining would copy it for each client
_MAX_DISCARDED_BYTES = 64 * 1024  # an unread body up to this size is discarded, and the connection stays open


class RequestCycle(RequestResponseCycle):
    """One request and its response. Header names must be lower case. Calls `on_response` once, when the response is
    complete."""

    flow: Flow
    close_connection: Callable[[], None] | None = None  # closes after the response; by default the transport's `close`

    _unsent = b""  # the response head, until it is written with the first chunk of the body
    _ends_with_connection = False  # HTTP/1.0 has no chunked encoding: a body without a length ends at the close

    async def send(self, message: Message) -> None:  # type: ignore[override]
        """Send an ASGI message. Raises RuntimeError if the message is invalid at this point."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if self.response_complete or kind != ("http.response.body" if self.response_started else "http.response.start"):
            raise RuntimeError(f"unexpected message {kind!r}")
        if self.response_started:
            self._write_body(message.get("body", b""), not message.get("more_body", False))
        else:
            self._start(message["status"], message["headers"])
            asyncio.get_running_loop().call_soon(self._flush)

    def take_body(self) -> bytes | None:
        """Return the whole request body if it has arrived and none of it has been read, else None."""
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        self.flow.resume_reading()
        body, self.body = bytes(self.body), bytearray()
        return body

    def write_response(self, status: int, headers: Headers, body: bytes) -> bool:
        """Write a whole response without waiting. `headers` must include content-length. Return False if the
        connection cannot take the response now; nothing is written then."""
        if self.flow.write_paused or self.disconnected or self.response_started:
            return False
        self._start(status, headers)
        self._write_body(body, True)
        return True

    def write_chunk(self, data: bytes) -> bool:
        """Write a chunk of a chunked response without waiting. Return False if the connection cannot take the chunk
        now; nothing is written then."""
        if self.flow.write_paused or self.disconnected or self.response_complete or not self.chunked_encoding:
            return False
        self._write(b"%b%x\r\n%b\r\n" % (self._unsent, len(data), data))
        self._unsent = b""
        return True

    def _start(self, status: int, headers: Headers) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        scope: Scope = self.scope  # type: ignore[assignment]
        if self.more_body and self.keep_alive and _may_have_large_body(scope["headers"]):
            self.keep_alive = False
        scope["hearth.status"] = status
        shared = scope.get("hearth.response_headers", ())
        lines = [b"%b: %b\r\n" % header for header in (*self.default_headers, *headers, *shared)]
        has_close = False
        for name, value in headers:
            if name == b"content-length":
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive, has_close = False, True
        if not self.keep_alive and not has_close:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in _BODILESS:
            self.chunked_encoding = self.scope["http_version"] != "1.0"
            if self.chunked_encoding:
                lines.append(b"transfer-encoding: chunked\r\n")
            self._ends_with_connection = not self.chunked_encoding
        head = b"".join(lines)
        if not head.count(b"\n") == head.count(b"\r") == len(lines) or head != head.translate(None, _CONTROL):
            raise RuntimeError("a response header contains a control character")
        self._unsent = b"%b%b\r\n" % (STATUS_LINE[status], head)

    def _flush(self) -> None:
        if self._unsent and not self.transport.is_closing():
            self._write(self._unsent)
        self._unsent = b""

    def _write_body(self, body: bytes, is_last: bool) -> None:
        data, head = self._encode_body(body, is_last), self._unsent
        self._unsent = b""
        if head and len(data) > _LARGE_BYTES:
            self._write(head)
            self._write(data)
        elif head or data:
            self._write(head + data)
        if is_last:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                (self.close_connection or self.transport.close)()
            self.on_response()

    def _write(self, data: bytes) -> None:
        self.flow.num_written += len(data)
        self.transport.write(data)

    def _encode_body(self, body: bytes, is_last: bool) -> bytes:
        """Return a part of the body as it is sent: nothing to HEAD, chunked or bare."""
        if self.scope["method"] == "HEAD":
            return b""
        if self.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunk + b"0\r\n\r\n" if is_last else chunk
        if not self._ends_with_connection:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (is_last and self.expected_content_length):
                raise RuntimeError("the response body does not match its content-length")
        return body


def _may_have_large_body(headers: Headers) -> bool:
    """Return True if the request's body may be larger than what is worth discarding."""
    for name, value in headers:
        if name == b"transfer-encoding":
            return True
        if name == b"content-length":
            return not (value.isdigit() and int(value) <= _MAX_DISCARDED_BYTES)
    return False
