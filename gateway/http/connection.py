"""One client's connection: uvicorn's, with what it does not offer. The app finds it as `scope["hearth.connection"]`.

Word of a lost connection without a background job; a way to drop it; bounds on the time and size of a head that is
still arriving; no answer to what cannot be read but one refusal, and nothing after it is run. What a head says is
judged in `guard.py`.
"""

from __future__ import annotations

import asyncio
import math
import re
from asyncio import BaseTransport
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway import envelope
from gateway.errors import Reason, Refusal
from gateway.http.connection_limiter import ConnectionLimiter
from gateway.http.head_validation import MAX_HEADER_BYTES, MAX_TARGET_BYTES
from gateway.http.request_cycle import RequestCycle
from storage.columns import uuid7
from telemetry import metrics

MAX_HEAD_BYTES = MAX_TARGET_BYTES + MAX_HEADER_BYTES + 4096  # while it arrives; the guard counts exactly
MAX_FRAMING_BYTES = 2 * MAX_HEAD_BYTES  # of a message in all: its head, sizes and extensions of chunks, trailers
MAX_FRAMING_PER_BYTE = 16  # of its body, beside that

_METHOD = re.compile(rb"(?:\r\n)*[A-Z-]{1,32} \S")


class Connection(HttpToolsProtocol):
    """Built by the server for each connection that is opened."""

    _when_lost: Callable[[], None] | None = None
    _is_in_head = False
    _is_in_message = False  # from a head's first byte to its body's last
    _num_head_bytes = 0
    _num_framing_bytes = 0  # of the message, as far as it came, that are neither body nor in proportion to it
    _body_left: int | None = None  # bytes of a body that the parser leaves to us
    _idle_since_s = math.inf  # of the loop's clock; never while a request is on its way
    _is_deaf = False  # nothing that arrives is looked at any more
    address = ""
    url = b""  # of the message

    def __init__(self, limiter: ConnectionLimiter, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.parser.set_dangerous_leniencies(lenient_version=True)  # any `d.d`: the guard says which are served
        self._limiter = limiter

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.address = self.client[0] if self.client else ""
        self._limiter.arrive(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        self._limiter.leave(self)
        if self._when_lost is not None:
            self._when_lost()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
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
            self._refuse_unreadable(error, data)
            return
        if self._is_in_message and not self._is_in_head and self._num_framing_bytes > MAX_FRAMING_BYTES:
            self._refuse(self._too_large())
        elif self._is_in_head or not (self._is_in_message or was_in_message or self.is_answering):
            self._go_on_waiting(len(data))
        elif not self.is_answering:
            self._discard_body()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = self._is_in_message = True
        self.scope["hearth.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._num_head_bytes = 0
        self._limiter.have_head(self)
        parser, scope = self.parser, self.scope
        version = parser.get_http_version()
        target = httptools.parse_url(self.url)
        path = target.path.decode("ascii")
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = target.path
        scope["query_string"] = target.query or b""
        earlier: RequestCycle | None = self.cycle  # type: ignore[assignment]
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
        if earlier is None or earlier.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:  # a request that came before the answer to another waits for its turn
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
        if not parser.should_upgrade():
            self.headers = []  # what follows a body is no header of the request's, nor kept

    def on_body(self, body: bytes) -> None:
        self._num_framing_bytes -= (1 + MAX_FRAMING_PER_BYTE) * len(body)
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def _discard_body(self) -> None:
        """A body goes on that was answered before it came: it has as long to end as a head has to arrive."""
        if self._is_in_message:
            self._limiter.wait_for_head(self)
            return
        self._limiter.have_head(self)
        self._keep_alive()

    def on_message_complete(self) -> None:
        self._is_in_message = False
        self._num_framing_bytes = 0
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._keep_alive()

    def _keep_alive(self) -> None:
        """From now on the connection is idle. The timer that an earlier request has left goes on: setting one for each
        request costs more than looking again when it fires."""
        self._idle_since_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_after(self.timeout_keep_alive)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since_s = math.inf

    def _look_after(self, delay_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(delay_s, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        self.timeout_keep_alive_task = None
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if math.isinf(left_s):
            return
        if left_s > 0:
            self._look_after(left_s)
        elif not self.transport.is_closing():
            self.transport.close()

    @property
    def is_answering(self) -> bool:
        """Whether a request is here whole, or its head is, and its answer is not out."""
        return self.cycle is not None and not self.cycle.response_complete

    def _go_on_waiting(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._refuse(self._too_large())
        else:
            self._limiter.wait_for_head(self)

    def _too_large(self) -> Refusal:
        """Why a head of which so much has come is read no further."""
        is_target = len(self.url) > MAX_TARGET_BYTES
        return Refusal(Reason.TARGET_TOO_LONG if is_target else Reason.HEADERS_TOO_LARGE)

    def _ignore_upgrade(self, data: bytes) -> None:
        """The parser reads nothing after a head that asks for another protocol: the body is taken here, the request
        answered like any other, and nothing after it is looked at."""
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
            self._is_deaf = True

    def _refuse_unreadable(self, error: httptools.HttpParserError, data: bytes) -> None:
        if isinstance(error, httptools.HttpParserCallbackError) and len(self.url) > MAX_TARGET_BYTES:
            self._refuse(self._too_large())  # longer than what takes a URL apart can count
            return
        is_unknown_method = isinstance(error, httptools.HttpParserInvalidMethodError) and _METHOD.match(data)
        self._refuse(Refusal(Reason.METHOD_UNKNOWN if is_unknown_method else Reason.HEAD_UNREADABLE))

    def _refuse(self, refusal: Refusal) -> None:
        """Answer what can be read no further, unless an earlier request is still being answered, and close."""
        self._is_deaf = True
        self.pipeline.clear()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False
            return
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(_rendered(refusal))
            metrics.REQUESTS.labels("", str(refusal.row.status)).inc()
        self.transport.close()

    def on_disconnect(self, callback: Callable[[], None] | None) -> None:
        """Call back if the connection closes before the answer is complete; None forgets the callback."""
        self._when_lost = callback
        if callback is not None:
            self.flow.resume_reading()  # a connection that is not read never tells that it was closed
            if self.transport.is_closing():
                callback()

    def mark_authenticated(self) -> None:
        """A credential that came over this connection is good."""
        self._limiter.mark_authenticated(self)

    def abort(self) -> None:
        """Drop the connection at once, with whatever is still unsent."""
        self.transport.abort()

    def turn_away(self) -> None:
        """Say that its address has too many connections, and read on without looking until whoever counts them ends
        it. One that was answered before is idle: it ends without a word, as it would some time anyway."""
        if self.cycle is not None:
            self.transport.close()
            return
        self._is_deaf = True
        refusal = Refusal(Reason.CROWDED)
        self.transport.write(_rendered(refusal))
        metrics.REQUESTS.labels("", str(refusal.row.status)).inc()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def give_up_on_head(self) -> None:
        """The head did not come in time."""
        if self._num_head_bytes:
            self._refuse(Refusal(Reason.HEAD_SLOW))
        else:
            self.transport.close()


def _rendered(refusal: Refusal) -> bytes:
    """A whole answer, for a request that reaches no app."""
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
