"""Lets pages of other origins call the API from a browser.

A credential is a header that a page must already know, never a cookie, so nothing is opened that a program could not
do; credentials of the browser's own are never allowed.

Plain ASGI. Adds its headers to answers of requests that have an Origin; what a preflight is told is in
`preflight_headers`. Knows no route.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Collection

from gateway.http.exchange import App, Headers, Receive, Scope, Send

EXPOSED = (
    b"cf-ai-neurons, cf-ai-req-id, cf-ray, idempotent-replayed, ratelimit, ratelimit-policy, retry-after, "
    b"x-hearth-model, x-hearth-request-id, x-request-id, x-should-retry"
)
MAX_AGE_S = 600

_HEADER_NAMES = re.compile(rb"[A-Za-z0-9_, -]{1,2048}")


class Cors:
    """`origins` may call, or any where it holds `*`."""

    def __init__(self, app: App, origins: Collection[str]) -> None:
        self._app = app
        self._is_open = "*" in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        origin = None
        for name, value in scope["headers"]:
            if name == b"origin":
                origin = value
        if origin is not None:
            added = self._headers_for(origin)
            scope["hearth.response_headers"] += added
            scope["hearth.is_origin_allowed"] = bool(added)
        return self._app(scope, receive, send)

    def _headers_for(self, origin: bytes) -> Headers:
        exposed = (b"access-control-expose-headers", EXPOSED)
        if self._is_open:
            return [(b"access-control-allow-origin", b"*"), exposed]
        if origin in self._origins:
            return [(b"access-control-allow-origin", origin), (b"vary", b"origin"), exposed]
        return []


def preflight_headers(scope: Scope) -> Headers | None:
    """What a preflight is answered with, if this is one and of an origin that is allowed; None for other requests."""
    if scope["method"] != "OPTIONS" or not scope.get("hearth.is_origin_allowed"):
        return None
    headers = dict(scope["headers"])
    if b"access-control-request-method" not in headers:
        return None
    wanted = headers.get(b"access-control-request-headers", b"")
    return [
        (b"access-control-allow-methods", b"DELETE, GET, HEAD, PATCH, POST, PUT"),
        (b"access-control-allow-headers", wanted if _HEADER_NAMES.fullmatch(wanted) else b"authorization"),
        (b"access-control-max-age", b"%d" % MAX_AGE_S),
    ]
