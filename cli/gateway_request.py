"""Requests of commands to a gateway's management API, with a session of their own that ends with the command."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import CommandFailed
from cli.target import Target
from local_platform.data_dir import DEFAULT_DATA, DataDir

if TYPE_CHECKING:
    import httpx

_ACTOR = "cli"
_TIMEOUT_S = 30.0

UrlOption = Annotated[
    str,
    typer.Option("--url", help="URL of a gateway, such as http://127.0.0.1:8787. Default: that of `hearth up`."),
]


async def request_gateway(
    url: str,
    data: Path | None,
    method: str,
    path: str,
    query: dict[str, str] | None = None,
    body: dict[str, Any] | None = None,
) -> Any:
    """Send one request to the gateway and return the `result` of its response. Raises CommandFailed."""
    import httpx

    target = Target.find(data)
    origin = url.rstrip("/") or _origin(data)
    async with _session(target, origin) as headers, httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
        try:
            response = await client.request(
                method, f"{origin}/client/v4{path}", params=query, json=body, headers=headers
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CommandFailed(f"the gateway at {origin} does not respond: {error}") from None
        return _result_of(response)


def _origin(data: Path | None) -> str:
    running = DataDir(data or DEFAULT_DATA).read_dev()
    if running is None:
        raise CommandFailed("no platform runs here: start one with `hearth up`, or pass --url")
    return str(running["base_url"]).removesuffix("/client/v4")


@contextlib.asynccontextmanager
async def _session(target: Target, origin: str) -> AsyncIterator[dict[str, str]]:
    """Yield the headers of a session with the role of an administrator, which only someone with the platform's keys can
    open. Raises CommandFailed."""
    from urllib.parse import urlsplit

    from gateway.management.session_cookies import SESSION, set_cookie
    from storage.ephemeral import Ephemeral
    from storage.errors import StoreUnavailable
    from tenants.credentials.web_sessions import SessionOwner, WebSessions

    secret = bytes.fromhex(target.require("HEARTH_CACHE_SECRET"))
    store = Ephemeral.connect(target.require("REDIS_URL"))
    sessions = WebSessions(store, secret)
    try:
        value = await sessions.open(SessionOwner(operator_id=_ACTOR, name=_ACTOR, role="administrator"))
        session = await sessions.find(value)
        host = urlsplit(origin).netloc.encode()
        cookie = set_cookie([(b"host", host)], SESSION, value, "Strict").partition(";")[0]
        token = session.csrf_token if session is not None else ""
        try:
            yield {"cookie": cookie, "x-hearth-csrf": token, "sec-fetch-site": "same-origin"}
        finally:
            await sessions.close(value)
    except StoreUnavailable as error:
        raise CommandFailed(str(error)) from None
    finally:
        await store.close()


def _result_of(response: httpx.Response) -> Any:
    """Return the `result` of a response. Raises CommandFailed with the error's message."""
    try:
        body = response.json()
        if response.status_code == 200:
            return body["result"]
        message = body["errors"][0]["message"]
    except (ValueError, KeyError, IndexError, TypeError):
        message = f"HTTP status {response.status_code}"
    if response.status_code == 404:
        message = "there is no such node, account or rule"
    raise CommandFailed(str(message))
