"""`/openapi.json`, and the page at `/docs` that shows it. The page loads nothing from other hosts.

Both are public and contain nothing about tenants or published models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cache
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
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class OpenApi:
    """Serves the OpenAPI 3.1 document of the given routes. It is built on the first request, in a thread, because that
    takes long enough to delay calls."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = tuple(routes)
        self._document = b""
        self._building: asyncio.Future[bytes] | None = None

    def encoded(self) -> bytes:
        """Return the document as JSON."""
        if not self._document:
            self._document = envelope.encode(document(self._routes))
        return self._document

    async def __call__(self, _services: Services, _request: Request) -> Response:
        headers = {"cache-control": "no-cache"}
        return Response(self._document or await self._built(), headers=headers, media_type="application/json")

    async def _built(self) -> bytes:
        if self._building is None or self._building.done():
            self._building = asyncio.ensure_future(asyncio.to_thread(self.encoded))
        return await asyncio.shield(self._building)


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
    return Response(_content(name), headers=_PAGE_HEADERS, media_type=media_type)


@cache
def _content(name: str) -> bytes:
    return resources.files("gateway.openapi").joinpath("pages", name).read_bytes()
