"""A client connection: uvicorn's HTTP protocol with timeouts and limits for request heads.

Adds what uvicorn does not offer: a callback when the client disconnects, a way to drop the connection, limits on the
time and size of a head, and an error response to data that is not valid HTTP. After an invalid request nothing more is
parsed. `head_validation.py` validates complete heads. The app finds the connection as `scope["hearth.connection"]`.
"""

from __future__ import annotations

import asyncio
import re
from asyncio import BaseTransport
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway import envelope
from gateway.errors import Reason, Refusal
from gateway.http.connection_limiter import ConnectionLimiter
from gateway.http.head_validation import MAX_HEADER_BYTES, MAX_TARGET_BYTES
from gateway.http.request_cycle import RequestCycle
from storage.columns import uuid7
from telemetry import metrics

MAX_HEAD_BYTES = MAX_TARGET_BYTES + MAX_HEADER_BYTES + 4096  # while the head arrives; HeadValidator counts exactly
MAX_FRAMING_BYTES = 2 * MAX_HEAD_BYTES  # per message: its head, chunk sizes and extensions, and trailers
MAX_FRAMING_PER_BYTE = 16  # framing allowed per body byte beside MAX_FRAMING_BYTES

_METHOD = re.compile(rb"(?:\r\n)*[A-Z-]{1,32} \S")


class Connection(HttpToolsProtocol):
    """One client connection, created by the server when the connection is accepted."""

    address = ""  # the client's address without port
    url = b""  # the request target of the current message

    _disconnect_callback: Callable[[], None] | None = None
    _is_in_head = False
    _is_in_message = False  # from the first byte of a head to the last byte of its body
    _num_head_bytes = 0
    _num_framing_bytes = 0  # bytes of the current message minus the allowance for its body
    _body_left: int | None = None  # body bytes to read without the parser, after an Upgrade header
    _ignores_input = False

    def __init__(self, limiter: ConnectionLimiter, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # The parser accepts every HTTP version; HeadValidator rejects unsupported versions with 505.
        self.parser.set_dangerous_leniencies(lenient_version=True)
        self._limiter = limiter

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.address = self.client[0] if self.client else ""
        self._limiter.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._limiter.remove(self)
        if self._disconnect_callback is not None:
            self._disconnect_callback()

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            return
        self._unset_keepalive_if_required()
        was_in_message = self._is_in_message
        self._num_framing_bytes += len(data)
        try:
            if self._body_left is None:
                self.parser.feed_data(data)
            else:
                self._take_body(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._reject_unparsable(error, data)
            return
        if self._is_in_message and not self._is_in_head and self._num_framing_bytes > MAX_FRAMING_BYTES:
            self._send_error(self._too_large())
        elif self._is_in_head or not (self._is_in_message or was_in_message or self.has_pending_response):
            self._continue_head(len(data))
        elif not self.has_pending_response:
            self._discard_body()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = self._is_in_message = True
        self.scope["hearth.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._num_head_bytes = 0
        self._limiter.head_received(self)
        parser, scope = self.parser, self.scope
        version = parser.get_http_version()
        target = httptools.parse_url(self.url)
        path = target.path.decode("ascii")
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = target.path
        scope["query_string"] = target.query or b""
        previous: RequestCycle | None = self.cycle  # type: ignore[assignment]
        self.cycle = cycle = RequestCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and parser.should_keep_alive() and not parser.should_upgrade(),
            on_response=self.on_response_complete,
        )
        scope["hearth.request_cycle"] = cycle  # type: ignore[typeddict-unknown-key]
        if previous is None or previous.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:  # a pipelined request waits until the previous response is complete
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
        if not parser.should_upgrade():
            self.headers = []  # detaches the request's headers from trailers, which the parser also reports

    def on_body(self, body: bytes) -> None:
        self._num_framing_bytes -= (1 + MAX_FRAMING_PER_BYTE) * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_message = False
        self._num_framing_bytes = 0
        super().on_message_complete()

    @property
    def has_pending_response(self) -> bool:
        """True from the end of a request head until its response is complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def on_disconnect(self, callback: Callable[[], None] | None) -> None:
        """Set the callback for a disconnect before the response is complete; None removes it."""
        self._disconnect_callback = callback
        if callback is not None:
            self.flow.resume_reading()  # asyncio reports a disconnect only while the transport is reading
            if self.transport.is_closing():
                callback()

    def mark_authenticated(self) -> None:
        """Exempt the connection from the limit of unauthenticated connections."""
        self._limiter.mark_authenticated(self)

    def abort(self) -> None:
        """Close the connection at once and drop unsent data."""
        self.transport.abort()

    def reject(self) -> None:
        """Send 429 because the address has too many connections. The limiter aborts the connection later; until then
        input is read and ignored. A connection that has served a request is closed without a response."""
        if self.cycle is not None:
            self.transport.close()
            return
        self._ignores_input = True
        self._write_error(Refusal(Reason.CROWDED))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def time_out_head(self) -> None:
        """Send 408 if a head has begun, and close the connection."""
        if self._num_head_bytes:
            self._send_error(Refusal(Reason.HEAD_SLOW))
        else:
            self.transport.close()

    def _continue_head(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._send_error(self._too_large())
        else:
            self._limiter.wait_for_head(self)

    def _discard_body(self) -> None:
        """Read and drop the rest of a body after its response; the rest must arrive within the head timeout."""
        if self._is_in_message:
            self._limiter.wait_for_head(self)
            return
        self._limiter.head_received(self)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _too_large(self) -> Refusal:
        is_target = len(self.url) > MAX_TARGET_BYTES
        return Refusal(Reason.TARGET_TOO_LONG if is_target else Reason.HEADERS_TOO_LARGE)

    def _ignore_upgrade(self, data: bytes) -> None:
        """Serve a request with an Upgrade header as HTTP. The parser stops after such a head, so the body is read here
        and everything after it is ignored."""
        length = next((value for name, value in self.headers if name == b"content-length"), b"0")
        self._body_left = int(length)
        self.cycle.more_body = True
        self._take_body(data)

    def _take_body(self, data: bytes) -> None:
        assert self._body_left is not None
        body = data[: self._body_left]
        self._body_left -= len(body)
        self.on_body(body)
        if not self._body_left:
            self.on_message_complete()
            self._ignores_input = True

    def _reject_unparsable(self, error: httptools.HttpParserError, data: bytes) -> None:
        if isinstance(error, httptools.HttpParserCallbackError) and len(self.url) > MAX_TARGET_BYTES:
            self._send_error(self._too_large())  # httptools.parse_url fails for targets of 64 KiB and more
            return
        is_unknown_method = isinstance(error, httptools.HttpParserInvalidMethodError) and _METHOD.match(data)
        self._send_error(Refusal(Reason.METHOD_UNKNOWN if is_unknown_method else Reason.HEAD_UNREADABLE))

    def _send_error(self, refusal: Refusal) -> None:
        """Send an error response, unless an earlier response is still in progress, and close the connection."""
        self._ignores_input = True
        self.pipeline.clear()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False
            return
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self._write_error(refusal)
        self.transport.close()

    def _write_error(self, refusal: Refusal) -> None:
        self.transport.write(_render(refusal))
        metrics.REQUESTS.labels("", str(refusal.row.status)).inc()


def _render(refusal: Refusal) -> bytes:
    """Return a whole response for a request that does not reach the app."""
    body = envelope.error(refusal)
    request_id = uuid7().encode()
    headers = [
        envelope.JSON_HEADER,
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id),
        (b"x-hearth-request-id", request_id),
        (b"connection", b"close"),
        *refusal.headers(),
    ]
    head = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return STATUS_LINE[refusal.row.status] + head + b"\r\n" + body
