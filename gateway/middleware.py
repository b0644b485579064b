"""Request id and access log: small plain ASGI classes, outermost first in `app.py`.

Limits on headers and body are checked where a refusal can be rendered and in the order the contract wants
(`exchange.py`). Knows no route's meaning.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import BinaryIO

import msgspec
from prometheus_client import Counter

from gateway.exchange import Message, Receive, Scope, Send
from storage.columns import uuid7
from telemetry import metrics

App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOG_FLUSH_INTERVAL_S = 0.1

_CLIENT_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestIdentity:
    """Gives the request our id (`scope["hearth.request_id"]`, a UUIDv7) and puts ids on its answer.

    `x-hearth-request-id` is ours; `x-request-id` the client's if it is well formed, else ours; `cf-ray` as clients of
    the original know it.
    """

    def __init__(self, app: App, pop: str) -> None:
        self._app = app
        self._suffix = b"-" + re.sub(r"[^A-Z0-9]", "", pop.upper())[:8].encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = uuid7()
        scope["hearth.request_id"] = request_id
        shown = ours = request_id.encode()
        for name, value in scope["headers"]:
            if name == b"x-request-id" and _CLIENT_REQUEST_ID.fullmatch(value):
                shown = value
        ray = (request_id[:8] + request_id[9:13] + request_id[-4:]).encode() + self._suffix
        headers = [(b"x-request-id", shown), (b"x-hearth-request-id", ours), (b"cf-ray", ray)]

        async def send_with_ids(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        await self._app(scope, receive, send_with_ids)


class AccessLog:
    """One line of JSON for each request, and its place in the metrics. `stream` is buffered; what is in it is written
    out a few times a second, and when the process ends."""

    def __init__(self, app: App, stream: BinaryIO | None) -> None:
        self._app = app
        self._stream = stream
        self._is_flush_due = False
        self._counters: dict[tuple[str, int], Counter] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_s = time.monotonic()
        status = 0

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            route = scope.get("hearth.route", "")
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
            counter = self._counters[key] = metrics.REQUESTS.labels(route, str(status))
        counter.inc()

    def _flush(self, stream: BinaryIO) -> None:
        self._is_flush_due = False
        stream.flush()


def _line(scope: Scope, route: str, status: int, duration_s: float) -> bytes:
    """Like every other line of the log; the path is left out, the route says what matters."""
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "level": "info",
        "process": "gateway",
        "logger": "access",
        "message": "request",
        "request_id": scope["hearth.request_id"],
        "method": scope["method"],
        "route": route,
        "status": status,
        "duration_ms": round(duration_s * 1000, 3),
    }
    return msgspec.json.encode(line) + b"\n"
