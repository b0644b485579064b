"""`/openapi.json`, and the page at `/docs` that shows it. The page loads nothing from other hosts.

Both are public and contain nothing about tenants or published models.
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
    """Serves the OpenAPI 3.1 document of the given routes, built on the first request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = tuple(routes)
        self._document = b""

    async def __call__(self, _services: Services, _request: Request) -> Response:
        if not self._document:
            self._document = envelope.encode(document(self._routes))
        headers = {"x-content-type-options": "nosniff", "cache-control": "no-cache"}
        return Response(self._document, headers=headers, media_type="application/json")


async def page(_services: Services, _request: Request) -> Response:
    """Get the page that shows the OpenAPI document and can call its operations."""
    return _file("docs.html", "text/html")


async def script(_services: Services, _request: Request) -> Response:
    """Get the script of the page."""
    return _file("docs.js", "text/javascript")


async def style(_services: Services, _request: Request) -> Response:
    """Get the style sheet of the page."""
    return _file("docs.css", "text/css")


def _file(name: str, media_type: str) -> Response:
    content = resources.files("gateway.openapi").joinpath("pages", name).read_bytes()
    return Response(content, headers=_PAGE_HEADERS, media_type=media_type)
