"""Sessions of people with a role on the platform, for tests of a gateway process."""

from __future__ import annotations

import asyncio
from typing import Literal
from urllib.parse import urlsplit

from storage.database import Database
from storage.ephemeral import Ephemeral
from tenants import operators, users
from tenants.credentials.roles import Role
from tenants.credentials.web_sessions import SessionOwner, WebSessions
from tests.gateway.process import CACHE_SECRET
from tests.gateway.site import Running

PlatformRole = Literal["administrator", "viewer"]


def session_headers(
    running: Running, role: PlatformRole | None, *, email: str, account_role: Role | None = None
) -> dict[str, str]:
    """Return the request headers of a new user's session. With `account_role`, the user is a member of the main
    account."""
    cookie, csrf_token = asyncio.run(_open(running, role, email, account_role))
    port = urlsplit(running.gateway.url).port
    headers = {"cookie": f"hearth-session-{port}={cookie}", "sec-fetch-site": "same-origin"}
    return headers | {"x-hearth-csrf": csrf_token}


async def _open(running: Running, role: PlatformRole | None, email: str, account_role: Role | None) -> tuple[str, str]:
    database, ephemeral = Database.connect(running.site.database_url), Ephemeral.connect(running.site.redis.url)
    try:
        user_id = await operators.add(database, email, role=role, password_hash=None)
        if account_role is not None:
            await users.join(database, user_id, running.tenants.account_id, role=account_role)
        sessions = WebSessions(ephemeral, CACHE_SECRET)
        cookie = await sessions.open(SessionOwner(user_id=user_id))
        session = await sessions.find(cookie)
        assert session is not None
        return cookie, session.csrf_token
    finally:
        await ephemeral.close()
        await database.close()
