"""One request and its answer on a client's connection: the server's own, but for how an answer is written.

The app finds it as `scope["hearth.cycle"]`: what needs no waiting, a body that is here and an answer that can go, is
done directly, without the two callables of ASGI.

A head goes out with the first piece of its body, in one write: each costs a call of the kernel and may wake the client.
A head whose body does not follow at once goes alone, at the end of the same turn of the event loop.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from gateway.http.exchange import Headers, Message, Scope

_CONTROL = bytes(sorted({*range(32), 127} - set(b"\t\r\n")))
_BODILESS = (204, 304)


class Cycle(RequestResponseCycle):
    """Names of headers are in lower case. `on_response` is called once, when the answer is complete."""

    _unsent = b""  # a head that waits for the first piece of its body
    _is_unframed = False  # HTTP/1.0 knows no chunks: without a length it ends where the connection does

    async def send(self, message: Message) -> None:  # type: ignore[override]
        """As ASGI says. Raises RuntimeError for an answer that is none."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        kind = message["type"]
        if self.response_complete or kind != ("http.response.body" if self.response_started else "http.response.start"):
            raise RuntimeError(f"unexpected message {kind!r}")
        if self.response_started:
            self._go_on(message.get("body", b""), not message.get("more_body", False))
        else:
            self._begin(message["status"], message["headers"])
            asyncio.get_running_loop().call_soon(self._flush)

    def take_body(self) -> bytes | None:
        """The whole body, if all of it is here and nobody has had any of it."""
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        self.flow.resume_reading()
        body, self.body = bytes(self.body), bytearray()
        return body

    def write_whole(self, status: int, headers: Headers, body: bytes) -> bool:
        """A whole answer, whose headers say how long it is, if it can go at once."""
        if self.flow.write_paused or self.disconnected or self.response_started:
            return False
        self._begin(status, headers)
        self._go_on(body, True)
        return True

    def write_chunk(self, data: bytes) -> bool:
        """A piece of an answer that has begun in chunks, if it can go at once."""
        if self.flow.write_paused or self.disconnected or self.response_complete or not self.chunked_encoding:
            return False
        self.transport.write(b"%b%x\r\n%b\r\n" % (self._unsent, len(data), data))
        self._unsent = b""
        return True

    def _begin(self, status: int, headers: Headers) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        scope: Scope = self.scope  # type: ignore[assignment]
        scope["hearth.status"] = status
        shared = scope.get("hearth.answer_headers", ())
        lines = [b"%b: %b\r\n" % header for header in (*self.default_headers, *headers, *shared)]
        closes = False
        for name, value in headers:
            if name == b"content-length":
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive, closes = False, True
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in _BODILESS:
            self.chunked_encoding = self.scope["http_version"] != "1.0"
            if self.chunked_encoding:
                lines.append(b"transfer-encoding: chunked\r\n")
            self._is_unframed = not self.chunked_encoding
        head = b"".join(lines)
        if not head.count(b"\n") == head.count(b"\r") == len(lines) or head != head.translate(None, _CONTROL):
            raise RuntimeError("a header holds what no header can")
        self._unsent = b"%b%b\r\n" % (STATUS_LINE[status], head)

    def _flush(self) -> None:
        if self._unsent and not self.transport.is_closing():
            self.transport.write(self._unsent)
        self._unsent = b""

    def _go_on(self, body: bytes, is_last: bool) -> None:
        if self.scope["method"] == "HEAD":
            body, self.expected_content_length = b"", 0
        elif self.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk + b"0\r\n\r\n" if is_last else chunk
        elif not self._is_unframed:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (is_last and self.expected_content_length):
                raise RuntimeError("an answer is not as long as its head says")
        if self._unsent or body:
            self.transport.write(self._unsent + body)
            self._unsent = b""
        if is_last:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
