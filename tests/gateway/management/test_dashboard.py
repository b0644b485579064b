"""`/dashboard`: the built app, its assets, and the security headers of every response."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway import app as gateway_app
from gateway.app import ROUTES
from gateway.management.dashboard import Dashboard
from gateway.services import open_services
from tests.gateway.site import Running
from tests.gateway.test_who_may import Unconnected, settings_of

SCRIPT = b"console.log('hearth');" * 40
ASSET = "/dashboard/assets/main-1a2b3c4d.js"
PAGE = b"""<!doctype html><html><head><meta property="csp-nonce" nonce="__CSP_NONCE__">
<script type="module" nonce="__CSP_NONCE__" src="/dashboard/assets/main-1a2b3c4d.js"></script></head></html>"""


@pytest.fixture
def build(tmp_path: Path) -> Callable[[], None]:
    """A function that writes a build into the folder `static`."""

    def write() -> None:
        folder = tmp_path / "static"
        (folder / "assets").mkdir(parents=True)
        (folder / ".vite").mkdir()
        (folder / ".vite/manifest.json").write_text("{}")
        (folder / ".built").write_text("0")
        (folder / "index.html").write_bytes(PAGE)
        (folder / "favicon.svg").write_text("<svg/>")
        (folder / "assets/main-1a2b3c4d.js").write_bytes(SCRIPT)
        (folder / "assets/main-1a2b3c4d.js.gz").write_bytes(gzip.compress(SCRIPT))
        (folder / "assets/main-1a2b3c4d.js.br").write_bytes(b"compressed")

    return write


@pytest.fixture
async def browser(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    """A browser at a gateway that serves the folder `static`."""
    dashboard = Dashboard(tmp_path / "static")
    endpoints = {"/dashboard": dashboard.page, "/dashboard/{path...}": dashboard.file}
    routes = [replace(route, endpoint=endpoints.get(route.path, route.endpoint)) for route in ROUTES]
    monkeypatch.setattr(gateway_app, "ROUTES", routes)
    async with open_services(settings_of(sqlite_url, tmp_path)) as services:
        app = gateway_app.build_app(services)

        async def connected(scope: Any, receive: Any, send: Any) -> None:
            scope["hearth.connection"] = scope["hearth.request_cycle"] = Unconnected()
            await app(scope, receive, send)

        transport = httpx.ASGITransport(app=connected)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8787") as client:
            yield client


def nonce_in(response: httpx.Response) -> str:
    match = re.search(r"style-src 'self' 'nonce-([A-Za-z0-9_-]{24})';", response.headers["content-security-policy"])
    assert match is not None
    return match[1]


async def test_page_has_a_new_nonce_in_every_response(browser: httpx.AsyncClient, build: Callable[[], None]):
    build()
    first, second = await browser.get("/dashboard"), await browser.get("/dashboard")
    assert nonce_in(first) != nonce_in(second)
    assert first.content == PAGE.replace(b"__CSP_NONCE__", nonce_in(first).encode())
    assert first.headers["cache-control"] == "no-cache"
    assert "etag" not in first.headers, "a kept page would have an old nonce"
    assert first.headers["content-type"] == "text/html; charset=utf-8"


async def test_policy_allows_no_inline_script_no_other_host_and_no_frame(
    browser: httpx.AsyncClient, build: Callable[[], None]
):
    build()
    response = await browser.get("/dashboard")
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert (policy["base-uri"], policy["frame-ancestors"], policy["form-action"]) == ("'none'", "'none'", "'self'")
    assert "script-src" not in policy
    assert "unsafe" not in response.headers["content-security-policy"]


async def test_paths_of_screens_show_the_page(browser: httpx.AsyncClient, build: Callable[[], None]):
    build()
    for path in ("/dashboard/", "/dashboard/accounts", "/dashboard/models/@cf/hearth/spark", "/dashboard/index.html"):
        response = await browser.get(path)
        assert (response.status_code, b"csp-nonce" in response.content) == (200, True), path
        assert nonce_in(response) in response.text
    for path in (".vite/manifest.json", ".built", "..%2f__init__.py", "../app.py", "%2e%2e/app.py"):
        response = await browser.get(f"/dashboard/{path}")
        assert response.status_code >= 400 or b"csp-nonce" in response.content, path


async def test_assets_are_kept_forever_and_sent_in_the_best_coding(
    browser: httpx.AsyncClient, build: Callable[[], None]
):
    build()
    for accepted, coding, content in (
        ("gzip, deflate, br, zstd", "br", b"compressed"),
        ("gzip", "gzip", gzip.compress(SCRIPT)),
        ("br;q=0, gzip;q=0.5", "gzip", gzip.compress(SCRIPT)),
        ("identity", None, SCRIPT),
        ("", None, SCRIPT),
    ):
        async with browser.stream("GET", ASSET, headers={"accept-encoding": accepted}) as response:
            raw = b"".join([part async for part in response.aiter_raw()])
        assert response.headers.get("content-encoding") == coding, accepted
        assert raw[10:] == content[10:], accepted  # after the time in gzip's header
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert response.headers["vary"] == "accept-encoding"
        assert response.headers["content-type"].startswith("text/javascript")
    known = await browser.get(ASSET, headers={"if-none-match": response.headers["etag"]})
    assert (known.status_code, known.content) == (304, b"")
    assert (await browser.get(ASSET, headers={"if-none-match": '"other"'})).status_code == 200
    assert (await browser.get("/dashboard/favicon.svg")).headers["cache-control"] == "no-cache"


async def test_missing_asset_is_an_error_and_not_the_page(browser: httpx.AsyncClient, build: Callable[[], None]):
    """A page instead of a script would be a puzzling error in the browser."""
    build()
    response = await browser.get("/dashboard/assets/gone.js")
    assert (response.status_code, response.headers["content-type"]) == (404, "application/json")


async def test_dashboard_that_is_not_built_says_what_to_do_and_appears_after_the_build(
    browser: httpx.AsyncClient, build: Callable[[], None], tmp_path: Path
):
    for path in ("/dashboard", "/dashboard/accounts"):
        response = await browser.get(path)
        assert "make dashboard" in response.text
        assert nonce_in(response)
    build()
    assert "csp-nonce" in (await browser.get("/dashboard")).text
    page = tmp_path / "static/index.html"
    page.write_bytes(b"<p>another build</p>")
    os.utime(page, ns=(1, 1))
    assert (await browser.get("/dashboard")).text == "<p>another build</p>"


@pytest.mark.parametrize("path", ["/dashboard", "/client/v4/accounts", "/admin/session", "/docs", "/healthz", "/x"])
def test_browsers_do_not_guess_the_type_of_any_response(running: Running, path: str):
    response = httpx.get(running.gateway.url + path)
    assert response.headers.get_list("x-content-type-options") == ["nosniff"]
    is_page = path in ("/dashboard", "/docs")
    assert response.headers["content-type"].startswith("text/html" if is_page else "application/json")


def test_address_of_the_gateway_leads_browsers_to_the_dashboard(running: Running):
    response = httpx.get(running.gateway.url + "/")
    assert (response.status_code, response.headers["location"]) == (307, "/dashboard")
