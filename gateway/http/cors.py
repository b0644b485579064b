"""CORS: allow pages of other origins to call the API from a browser.

Credentials are sent in headers that the page must know, so CORS gives a page no more than any other client has. Cookies
and other browser credentials are never allowed.

`Cors` is ASGI middleware that adds headers to responses; `preflight_headers` answers preflight requests.
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
    """Middleware that allows `origins`, or all origins if it contains `*`."""

    def __init__(self, app: App, origins: Collection[str]) -> None:
        self._app = app
        self._allows_all = "*" in origins
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
        if self._allows_all:
            return [(b"access-control-allow-origin", b"*"), exposed]
        if origin in self._origins:
            return [(b"access-control-allow-origin", origin), (b"vary", b"origin"), exposed]
        return []


def preflight_headers(scope: Scope) -> Headers | None:
    """Return the response headers of a preflight request from an allowed origin, or None for any other request."""
    if scope["method"] != "OPTIONS" or not scope.get("hearth.is_origin_allowed"):
        return None
    headers = dict(scope["headers"])
    if b"access-control-request-method" not in headers:
        return None
    requested = headers.get(b"access-control-request-headers", b"")
    return [
        (b"access-control-allow-methods", b"DELETE, GET, HEAD, PATCH, POST, PUT"),
        (b"access-control-allow-headers", requested if _HEADER_NAMES.fullmatch(requested) else b"authorization"),
        (b"access-control-max-age", b"%d" % MAX_AGE_S),
    ]
