"""`/openapi.json`, and the page at `/docs` that shows it. Everything is served from here: the page works offline.

No credential; nothing about tenants or about which models there are.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from gateway import envelope
from gateway.openapi.document import document
from gateway.routing import Route
from gateway.services import Services

_PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class OpenApi:
    """The OpenAPI 3.1 document of these routes and its own."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = tuple(routes)
        self._document = b""

    async def __call__(self, _services: Services, _request: Request) -> Response:
        if not self._document:
            self._document = envelope.encode(document(self._routes))
        headers = {"x-content-type-options": "nosniff", "cache-control": "no-cache"}
        return Response(self._document, headers=headers, media_type="application/json")


async def page(_services: Services, _request: Request) -> Response:
    """A page that shows the document and tries its operations."""
    return _file("docs.html", "text/html")


async def script(_services: Services, _request: Request) -> Response:
    """The page's script."""
    return _file("docs.js", "text/javascript")


async def style(_services: Services, _request: Request) -> Response:
    """The page's style."""
    return _file("docs.css", "text/css")


def _file(name: str, media_type: str) -> Response:
    content = resources.files("gateway.openapi").joinpath("pages", name).read_bytes()
    return Response(content, headers=_PAGE_HEADERS, media_type=media_type)
