"""CORS: allow pages of other origins to call the API from a browser.

Credentials are sent in headers that the page must know, so CORS gives a page no more than any other client has. Cookies
and other browser credentials are never allowed.

`Cors` is ASGI middleware that adds headers to responses; `preflight_headers` answers preflight requests. Without
allowed origins, no response has CORS headers.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Collection

from gateway.http.exchange import App, Headers, Receive, Scope, Send

EXPOSED = (
    b"allow, cf-ai-neurons, cf-ai-req-id, cf-ray, idempotent-replayed, ratelimit, ratelimit-policy, request-id, "
    b"retry-after, x-hearth-model, x-hearth-request-id, x-request-id, x-should-retry"
)
MAX_AGE_S = 600

_HEADER_NAMES = re.compile(rb"[A-Za-z0-9_, -]{1,2048}")


class CorsPolicy:
    """The origins that are allowed: those in `origins`, or all if it contains `*`."""

    def __init__(self, origins: Collection[str]) -> None:
        self._allows_all = "*" in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    def allows(self, origin: bytes | None) -> bool:
        """Return True if pages of an origin may call the API; None is a request without an Origin header."""
        return origin is not None and (self._allows_all or origin in self._origins)

    def headers_for(self, origin: bytes | None) -> Headers:
        """Return the headers of every response to a request with this Origin header. `Vary` is part of all of them, so
        that no cache gives one origin's response to another."""
        if not self._origins:
            return []
        vary = (b"vary", b"origin")
        if origin is None or not self.allows(origin):
            return [vary]
        allowed = b"*" if self._allows_all else origin
        return [(b"access-control-allow-origin", allowed), vary, (b"access-control-expose-headers", EXPOSED)]


class Cors:
    """Middleware that adds the headers of a policy."""

    def __init__(self, app: App, policy: CorsPolicy) -> None:
        self._app = app
        self._policy = policy

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        origin = None
        for name, value in scope["headers"]:
            if name == b"origin":
                origin = value
        scope["hearth.response_headers"] += self._policy.headers_for(origin)
        scope["hearth.is_origin_allowed"] = self._policy.allows(origin)
        return self._app(scope, receive, send)


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
