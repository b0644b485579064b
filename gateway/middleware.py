"""Request ids and the access log: small ASGI classes, applied in `app.py`.

Response headers and status travel in the scope, where the server (`http/request_cycle.py`) reads and writes them;
`send` is not wrapped. Limits on headers and body are checked in `http/exchange.py`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from functools import lru_cache
from typing import BinaryIO

import msgspec

from gateway.http.exchange import App, Headers, Receive, Scope, Send
from storage.columns import uuid7
from telemetry import metrics

LOG_FLUSH_INTERVAL_S = 0.1

_NO_SNIFFING = (b"x-content-type-options", b"nosniff")
_CLIENT_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestIdentity:
    """Assigns a request id (`scope["hearth.request_id"]`, a UUIDv7) and adds it to the response.

    | Header | Value |
    |---|---|
    | `x-hearth-request-id` | the assigned id |
    | `x-request-id` | the client's id if it is well formed, else the assigned one |
    | `cf-ray` | the assigned id in Cloudflare's format |

    The response also gets `x-content-type-options: nosniff`, so that no browser takes JSON for a page.
    """

    def __init__(self, app: App, pop: str) -> None:
        self._app = app
        self._suffix = ray_suffix(pop)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        request_id = uuid7()
        scope["hearth.request_id"] = request_id
        shown = None
        for name, value in scope["headers"]:
            if name == b"x-request-id" and _CLIENT_REQUEST_ID.fullmatch(value):
                shown = value
        scope["hearth.response_headers"] = identity_headers(request_id, self._suffix, shown)
        return self._app(scope, receive, send)


def ray_suffix(pop: str) -> bytes:
    """Return the end of a `cf-ray` header, which names the PoP."""
    return b"-" + re.sub(r"[^A-Z0-9]", "", pop.upper())[:8].encode()


def identity_headers(request_id: str, suffix: bytes, shown: bytes | None = None) -> Headers:
    """Return the headers of every response; `shown` is the client's own request id."""
    ours = request_id.encode()
    ray = (request_id[:8] + request_id[9:13] + request_id[-4:]).encode() + suffix
    return [(b"x-request-id", shown or ours), (b"x-hearth-request-id", ours), (b"cf-ray", ray), _NO_SNIFFING]


class AccessLog:
    """Writes one line of JSON for each request and counts it in the metrics. `stream` is buffered and flushed every
    LOG_FLUSH_INTERVAL_S."""

    def __init__(self, app: App, stream: BinaryIO | None) -> None:
        self._app = app
        self._stream = stream
        self._is_flush_due = False
        self._counters: dict[tuple[str, int], metrics.BufferedCounter] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_s = time.monotonic()
        try:
            await self._app(scope, receive, send)
        finally:
            route, status = scope.get("hearth.route", ""), scope.get("hearth.status", 0)
            self._count(route, status)
            if self._stream is not None:
                self._stream.write(_line(scope, route, status, time.monotonic() - started_s))
                if not self._is_flush_due:
                    self._is_flush_due = True
                    asyncio.get_running_loop().call_later(LOG_FLUSH_INTERVAL_S, self._flush, self._stream)

    def _count(self, route: str, status: int) -> None:
        key = (route, status)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = metrics.BufferedCounter(metrics.REQUESTS.labels(route, str(status)))
        counter.add()

    def _flush(self, stream: BinaryIO) -> None:
        self._is_flush_due = False
        stream.flush()


class _Line(msgspec.Struct, frozen=True):
    """Fields of all log lines. The path is omitted: the route suffices."""

    time: str
    request_id: str
    method: str
    route: str
    status: int
    duration_ms: float
    level: str = "info"
    process: str = "gateway"
    logger: str = "access"
    message: str = "request"


def _line(scope: Scope, route: str, status: int, duration_s: float) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    time_text = f"{_text_of_second(now_ms // 1000)}.{now_ms % 1000:03d}+00:00"
    line = _Line(time_text, scope["hearth.request_id"], scope["method"], route, status, round(duration_s * 1000, 3))
    return msgspec.json.encode(line) + b"\n"


@lru_cache(maxsize=1)
def _text_of_second(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
