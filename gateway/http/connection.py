"""A client connection: uvicorn's HTTP protocol with timeouts and limits.

Adds what uvicorn does not offer: a callback when the client disconnects, a way to drop the connection, limits on the
time and size of a head, on the time that parsing takes at once, on pipelined requests and on slow readers, an error
response to data that is not valid HTTP, and a close that lets the client read the last response. After an invalid
request nothing more is parsed.
`head_validation.py` validates complete heads. The app finds the connection as `scope["hearth.connection"]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import time
from asyncio import BaseTransport
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway import envelope
from gateway.errors import Reason, Refusal
from gateway.http.client_address import Proxies, client_address, limited_network
from gateway.http.connection_limiter import ConnectionLimiter
from gateway.http.exchange import Headers
from gateway.http.head_validation import ALLOWED_METHODS, MAX_HEADER_BYTES, MAX_HEADERS, MAX_TARGET_BYTES
from gateway.http.lingering_close import BODY_LINGER_S, REJECTION_LINGER_S, LingeringClose
from gateway.http.reading_turns import MAX_WAITING_BYTES, PARSE_S, ReadingTurns
from gateway.http.request_cycle import RequestCycle
from gateway.http.web_socket import WebSocket
from gateway.http.write_deadline import Flow, WriteDeadline
from telemetry import metrics

MAX_HEAD_BYTES = MAX_TARGET_BYTES + MAX_HEADER_BYTES + 4096  # while the head arrives; HeadValidator counts exactly
MAX_FRAMING_BYTES = 2 * MAX_HEAD_BYTES  # per message: its head, chunk sizes and extensions, and trailers
MAX_FRAMING_PER_BYTE = 16  # framing allowed per body byte beside MAX_FRAMING_BYTES
SLICE_BYTES = 2048  # parsed without a look at the clock
MAX_PIPELINED = 100  # requests that wait for the response to an earlier request of their connection

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_METHOD = re.compile(rb"(?:\r\n)*([A-Z-]{1,32}) \S")
_ORIGIN = re.compile(rb"\norigin:[ \t]*([!-~]{1,256})\r", re.IGNORECASE)


class _StopParsing(Exception):
    """Raised in a callback of the parser, to ignore the rest of the data."""


@dataclass(frozen=True)
class ConnectionServices:
    """Services that all connections of one server share.

    `error_headers` returns the headers that every response has, for a response that does not come from the app; its
    argument is the request's Origin header, if known.
    """

    limiter: ConnectionLimiter
    write_deadline: WriteDeadline
    lingering_close: LingeringClose
    reading_turns: ReadingTurns
    trusted_proxies: Proxies | None
    error_headers: Callable[[bytes | None], Headers]


class Connection(HttpToolsProtocol):
    """One client connection, created by the server when the connection is accepted."""

    flow: Flow
    url = b""  # the request target of the current message

    _disconnect_callback: Callable[[], None] | None = None
    _is_in_head = False
    _is_in_message = False  # from the first byte of a head to the last byte of its body
    _num_head_bytes = 0
    _num_framing_bytes = 0  # bytes of the current message minus the allowance for its body
    _num_body_bytes = 0  # body bytes received of the current message
    _body_left: int | None = None  # body bytes to read without the parser, after an Upgrade header
    _ignores_input = False
    _is_half_closed = False  # nothing more can be written
    _party = ""  # party of the latest valid credential, or empty
    _held_data = b""  # waits until it is this connection's turn
    _is_from_proxy = False  # the peer is a trusted proxy
    _web_socket: WebSocket | None = None  # takes all data once a request for it was accepted
    _running_cycle: RequestCycle | None = None  # the oldest request without a complete response, or the newest request

    def __init__(self, services: ConnectionServices, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # The parser accepts every HTTP version; HeadValidator rejects unsupported versions with 505.
        self.parser.set_dangerous_leniencies(lenient_version=True)
        self._services = services
        self._limiter = services.limiter

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.flow = Flow(self.transport)
        self._services.write_deadline.add(self)
        address = self.client[0] if self.client else ""
        proxies = self._services.trusted_proxies
        self._is_from_proxy = proxies is not None and proxies.admits(address)
        if not self._is_from_proxy:  # a proxy may open connections for later
            self._limiter.wait_for_head(self)
            self._limiter.count(self, limited_network(address))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._services.write_deadline.remove(self)
        self._services.lingering_close.remove(self)
        self._limiter.remove(self)
        self._held_data = b""
        self._disconnect_cycles()
        if self._web_socket is not None:
            self._web_socket.connection_lost()
        # These refer to this connection: without this, a flood of closed connections would stay in memory until the
        # next full garbage collection.
        self._web_socket = None
        self.cycle = self._running_cycle = None  # type: ignore[assignment]
        self.scope = None  # type: ignore[assignment]

    def _disconnect_cycles(self) -> None:
        """Tell every request without a complete response that the client is gone."""
        running, waiting = self._running_cycle, [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        for cycle in (running, *waiting):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        callback, self._disconnect_callback = self._disconnect_callback, None
        if callback is not None:
            callback()

    def data_received(self, data: bytes) -> None:
        if self._web_socket is not None:
            self._parse_frames(self._web_socket, data)
            return
        if self._ignores_input:
            self._services.lingering_close.data_discarded(self)
            return
        if self._held_data or self._limiter.crowded_client(self) is not None:
            self._hold(data)
        else:
            self._parse(data)

    def _hold(self, data: bytes) -> None:
        """Keep data until it is this connection's turn, and stop reading."""
        if not self._held_data:
            client, turns = self._limiter.client_of(self), self._services.reading_turns
            if client is None:
                turns.add(self, self._party, len(data))
            elif not turns.add(self, client, len(data), MAX_WAITING_BYTES):
                self.abort()
                return
        self._held_data += data
        self.pause_reading()
        self.flow.is_held = True

    def take_turn(self) -> None:
        """Parse the data that waited, and read again."""
        data = self._release_held_data()
        self.resume_reading()
        if self._web_socket is not None and not self.transport.is_closing():
            self._parse_frames(self._web_socket, b"")
        elif data and not self._ignores_input:
            self._parse(data)

    def _parse_frames(self, web_socket: WebSocket, data: bytes) -> None:
        """Parse data of a WebSocket. If that takes long, the rest waits for its turn."""
        if not web_socket.parse(data):
            self._services.reading_turns.add(self, self._party, 0)
            self.pause_reading()
            self.flow.is_held = True
        elif not web_socket.has_room:
            self.pause_reading()

    def _release_held_data(self) -> bytes:
        data, self._held_data = self._held_data, b""
        self.flow.is_held = False
        return data

    def _parse(self, data: bytes) -> None:
        """Parse data, piece by piece. If that takes more than PARSE_S, the rest waits for its turn."""
        self._unset_keepalive_if_required()
        if len(data) <= SLICE_BYTES:
            self._parse_piece(data)
            return
        began_s, start = time.perf_counter(), 0
        while start < len(data) and not self._ignores_input:
            end = start + max(SLICE_BYTES, self._num_announced_bytes)
            self._parse_piece(data[start:end])
            start = end
            if start < len(data) and time.perf_counter() - began_s > PARSE_S and not self._ignores_input:
                self._hold(data[start:])
                return

    @property
    def _num_announced_bytes(self) -> int:
        """The rest of a body whose length is known: nothing in it has to be parsed."""
        if self.cycle is None or not self._is_in_message or self._is_in_head:
            return 0
        length = dict(self.cycle.scope["headers"]).get(b"content-length", b"")
        return int(length) - self._num_body_bytes if length.isdigit() else 0

    def _parse_piece(self, data: bytes) -> None:
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
            if not isinstance(error.__context__, _StopParsing):
                self._reject_unparsable(error, data)
            return
        is_framing_too_large = not self._is_in_head and self._num_framing_bytes > MAX_FRAMING_BYTES
        # Checked while a head or trailers arrive: a header of 4 bytes takes 40 times as much memory.
        if self._is_in_message and (is_framing_too_large or len(self.headers) > MAX_HEADERS):
            self._send_error(self._too_large())
        elif self._is_in_head or not (self._is_in_message or was_in_message or self.has_pending_response):
            self._continue_head(len(data))
        elif not self.has_pending_response:
            self._discard_body()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            self._end_pipeline()
        super().on_message_begin()
        self._num_body_bytes = 0
        self._is_in_head = self._is_in_message = True
        self.scope["hearth.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._num_head_bytes = 0
        self._limiter.head_received(self)
        parser, scope = self.parser, self.scope
        version = parser.get_http_version()
        if self._is_from_proxy and self.client is not None:
            client = client_address(self.headers, self.client[0], self._services.trusted_proxies)
            self._limiter.count(self, limited_network(client or ""))
            if self._ignores_input or self.transport.is_closing():  # too many requests of this client
                raise _StopParsing
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
        cycle.close_connection = self.close
        if previous is None or previous.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:  # a pipelined request waits until the previous response is complete
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
        if not parser.should_upgrade():
            self.headers = []  # detaches the request's headers from trailers, which the parser also reports

    def on_body(self, body: bytes) -> None:
        self._num_body_bytes += len(body)
        self._num_framing_bytes -= (1 + MAX_FRAMING_PER_BYTE) * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_message = False
        self._num_framing_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self.is_idle_at_proxy:
            self._limiter.stop_counting(self)
        super().on_response_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running_cycle = cycle
        cycle.scope["hearth.request_cycle"] = cycle  # a reference cycle, until `Exchange` takes it
        super()._start_asgi_task(cycle, app)

    @property
    def has_pending_response(self) -> bool:
        """True from the end of a request head until its response is complete."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_waiting_for_gateway(self) -> bool:
        """True if the next step is the gateway's: the client does not delay a response."""
        if self._held_data:
            return True
        running = self._running_cycle
        if running is None or running.response_started or running.disconnected:
            return False
        return not self.flow.write_paused

    @property
    def is_idle_at_proxy(self) -> bool:
        """True if a trusted proxy has received all responses on this connection."""
        return self._is_from_proxy and not self.has_pending_response and not self.num_unsent

    @property
    def num_unsent(self) -> int:
        """Bytes that are written but not sent."""
        return self.transport.get_write_buffer_size()

    @property
    def num_sent(self) -> int:
        """Bytes that the operating system has accepted."""
        return self.flow.num_written - self.num_unsent

    def on_disconnect(self, callback: Callable[[], None] | None) -> None:
        """Set the callback for a disconnect before the response is complete; None removes it."""
        self._disconnect_callback = callback
        if callback is not None:
            self.flow.resume_reading()  # asyncio reports a disconnect only while the transport is reading
            if self.transport.is_closing():
                callback()

    @property
    def is_closing(self) -> bool:
        """True if the connection is closed or closing."""
        return self.transport.is_closing()

    def upgrade(self, accept_key: bytes, headers: Headers) -> WebSocket:
        """Respond to the running request with 101 and return the WebSocket that the connection becomes."""
        cycle = self._running_cycle
        assert cycle is not None, "the connection is open"
        cycle.response_started = True
        cycle.scope["hearth.status"] = 101  # type: ignore[typeddict-unknown-key]
        own = [(b"upgrade", b"websocket"), (b"connection", b"Upgrade"), (b"sec-websocket-accept", accept_key)]
        shared: Headers = cycle.scope.get("hearth.response_headers", [])  # type: ignore[assignment]
        lines = b"".join([b"%b: %b\r\n" % header for header in (*own, *headers, *shared)])
        self.write(b"HTTP/1.1 101 Switching Protocols\r\n%b\r\n" % lines)
        self._web_socket = WebSocket(self)
        self.resume_reading()
        return self._web_socket

    def write(self, data: bytes) -> None:
        """Write data of a WebSocket."""
        if not self.transport.is_closing():
            self.flow.num_written += len(data)
            self.transport.write(data)

    def end_upgrade(self) -> None:
        """Close the connection after what was written."""
        if self._running_cycle is not None:
            self._running_cycle.response_complete = True
        self.transport.close()

    def mark_authenticated(self, party: str) -> None:
        """Count the connection as one of this party instead of an unauthenticated connection. Raises Refusal if the
        party has too many."""
        if self.transport.is_closing():
            return
        if self._is_from_proxy:  # carries requests of many clients
            self._limiter.stop_counting(self)
        elif party != self._party and not self._limiter.count_authenticated(self, party):
            raise Refusal(Reason.CONCURRENCY_LIMITED, "account")
        is_first, self._party = not self._party, party
        if is_first:
            # The limit of the listener costs streams many wake-ups.
            with contextlib.suppress(OSError):  # the client has already closed the connection
                client_socket = self.transport.get_extra_info("socket")
                client_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 0)

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        if not self.transport.is_closing():
            self.flow.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def abort(self) -> None:
        """Reset the connection and drop unsent data, also data that the operating system would still send."""
        with contextlib.suppress(OSError, ValueError):  # the connection is closed already
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()

    def reject(self) -> None:
        """Send 429 because the client has too many connections, and close. A connection that has served a request is
        closed without a response."""
        if self.cycle is None:
            self._write_error(Refusal(Reason.CROWDED))
            self._linger(REJECTION_LINGER_S)
        else:
            self.transport.close()
            self._services.lingering_close.add(self, REJECTION_LINGER_S)

    def close(self) -> None:
        """Close the connection after the last response. If the client still sends its request, the rest is discarded,
        so that the client can read the response."""
        if self._is_in_message:
            self._linger(BODY_LINGER_S)
        else:
            self.transport.close()

    def _linger(self, linger_s: float) -> None:
        self._ignores_input = True
        self._release_held_data()
        self._unset_keepalive_if_required()
        if self.transport.is_closing() or self._is_half_closed:
            return
        if self.transport.can_write_eof():
            self._is_half_closed = True
            self.transport.write_eof()
        self._limiter.head_received(self)
        self._services.lingering_close.add(self, linger_s)
        self.resume_reading()

    def time_out_head(self) -> None:
        """Send 408 if a head has begun, and close the connection."""
        if self._held_data:
            self._limiter.wait_for_head(self)
            return
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
        self._is_in_message = self.cycle.more_body = True
        self._take_body(data)

    def _take_body(self, data: bytes) -> None:
        assert self._body_left is not None
        body = data[: self._body_left]
        self._body_left -= len(body)
        self.on_body(body)
        if not self._body_left:
            self.on_message_complete()
            self._ignores_input = True

    def _end_pipeline(self) -> None:
        """Ignore further requests, and close the connection after the responses to the requests so far."""
        self._ignores_input = True
        newest, _ = self.pipeline[0]
        newest.keep_alive = False
        raise _StopParsing

    def _reject_unparsable(self, error: httptools.HttpParserError, data: bytes) -> None:
        origin = _ORIGIN.search(data)
        if isinstance(error, httptools.HttpParserCallbackError) and len(self.url) > MAX_TARGET_BYTES:
            refusal = self._too_large()  # httptools.parse_url fails for targets of 64 KiB and more
        elif method := self._method_without_route(error, data):
            refusal = Refusal(Reason.METHOD_NOT_ALLOWED, method, allow=ALLOWED_METHODS)
        else:
            refusal = Refusal(Reason.HEAD_UNREADABLE)
        self._send_error(refusal, origin[1] if origin else None)

    def _method_without_route(self, error: httptools.HttpParserError, data: bytes) -> str:
        """Return the method of a request that failed because of its method, else an empty string."""
        if isinstance(error, httptools.HttpParserInvalidMethodError):
            found = _METHOD.match(data)
            return found[1].decode() if found else ""
        # The target of CONNECT is no path.
        is_connect = isinstance(error, httptools.HttpParserCallbackError) and self.parser.get_method() == b"CONNECT"
        return "CONNECT" if is_connect else ""

    def _send_error(self, refusal: Refusal, origin: bytes | None = None) -> None:
        """Send an error response, unless an earlier response is still in progress, and close the connection."""
        self._ignores_input = True
        running = self._running_cycle
        if running is not None and not running.response_complete:
            is_incomplete = running is self.cycle and running.more_body
            if not is_incomplete:
                self.pipeline.clear()
                running.keep_alive = False
                return
            if running.response_started:
                self.transport.close()
                return
        self._write_error(refusal, origin)
        self._disconnect_cycles()
        self._linger(REJECTION_LINGER_S)

    def _write_error(self, refusal: Refusal, origin: bytes | None = None) -> None:
        if self._is_half_closed:
            return
        default_headers = self.server_state.default_headers
        data = _render(refusal, [*default_headers, *self._services.error_headers(origin)])
        self.flow.num_written += len(data)
        self.transport.write(data)
        metrics.REQUESTS.labels("", str(refusal.row.status)).inc()


def _render(refusal: Refusal, headers: Headers) -> bytes:
    """Return a whole response for a request that does not reach the app."""
    body = envelope.error(refusal)
    all_headers = [
        envelope.JSON_HEADER,
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        *headers,
        *refusal.headers(),
    ]
    head = b"".join(name + b": " + value + b"\r\n" for name, value in all_headers)
    return STATUS_LINE[refusal.row.status] + head + b"\r\n" + body
