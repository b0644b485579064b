"""A dump of everything that is stored, cached or logged contains no usable token.

Covers the tables, files and journals of both databases, Redis, spools, logs and objects.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import httpx
import pytest
from redis import Redis
from sqlalchemy import text as sql

from bench import figures
from storage.database import Database
from tenants.credentials.api_token_text import parse_secret
from tenants.credentials.principal import Refused
from tests.gateway.inference.test_text_generation import script
from tests.gateway.process import PARROT, PEPPER
from tests.gateway.site import Running, Site
from tests.waiting import wait_until_blocking

_LIKE_A_TOKEN = re.compile(rb"cf[a-z]{1,2}t_[0-9A-Za-z]{20,80}")


@dataclass
class Holding:
    """A running platform with stored data, and the folders of servers outside the site, such as PostgreSQL's log and
    WAL."""

    running: Running
    servers: tuple[Path, ...] = ()

    @property
    def site(self) -> Site:
        return self.running.site


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def holding(request: pytest.FixtureRequest, new_site: Callable[..., Site]) -> Iterator[Holding]:
    if request.param == "sqlite":
        yield Holding(request.getfixturevalue("running"))
        return
    site = new_site(request.getfixturevalue("migrated_postgres_url"))
    site.add_node("n1")
    gateway = site.gateway(OBJECTS_URL=f"file://{site.folder / 'objects'}").start()
    yield Holding(Running(site, gateway), (request.getfixturevalue("postgres_server").folder,))
    gateway.stop()


def dump(holding: Holding) -> Iterator[tuple[str, bytes]]:
    """Yield the location and content of every file of the site, database row, Redis key and command."""
    site = holding.site
    for folder in (site.folder, *holding.servers):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield str(path.relative_to(folder)), path.read_bytes()
    if holding.servers:
        yield from asyncio.run(_postgres_rows(site.database_url))
    else:
        yield from _sqlite_rows(site.database_url)
    with contextlib.closing(Redis.from_url(site.redis.url)) as redis:
        redis.config_set("rdbcompression", "no")
        keys: list[bytes] = redis.keys()  # type: ignore[assignment]
        for key in keys:
            dump: bytes = redis.dump(key) or b""  # type: ignore[assignment]
            yield f"redis {key!r}", key + b"\n" + dump
        yield "redis slowlog", repr(redis.slowlog_get(10_000)).encode()
        yield "redis clients", repr(redis.client_list()).encode()


def _sqlite_rows(url: str) -> Iterator[tuple[str, bytes]]:
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite://"))) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert len(tables) > 15
        for table in tables:
            for row in connection.execute(f'SELECT * FROM "{table}"'):
                yield f"table {table}", b"\n".join(_plain(value) for value in row)


async def _postgres_rows(url: str) -> list[tuple[str, bytes]]:
    connection = await asyncpg.connect(url)
    try:
        named = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        assert len(named) > 15
        return [
            (f"table {table}", b"\n".join(_plain(value) for value in row))
            for (table,) in named
            for row in await connection.fetch(f'SELECT * FROM "{table}"')
        ]
    finally:
        await connection.close()


def _plain(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def found_in(holding: Holding, texts: list[str]) -> list[str]:
    """Return the locations that contain one of the secrets, plainly or in a common encoding, or any other token."""
    wanted = set()
    for text in texts:
        raw = text.encode()
        wanted |= {raw, raw.hex().encode(), base64.b64encode(raw), base64.urlsafe_b64encode(raw), raw[::-1]}
        wanted.add(raw[-36:])  # the random part and the checksum; the lookup id alone is not a credential
    places = []
    for where, content in dump(holding):
        likely = (match[0].decode() for match in _LIKE_A_TOKEN.finditer(content))
        if any(form in content for form in wanted) or any(not isinstance(parse_secret(t), Refused) for t in likely):
            places.append(where)
    return places


def use_everywhere(running: Running) -> list[str]:
    """Send tokens in valid and invalid positions; return the secrets that the API returned meanwhile."""
    shown = []
    good, account_url = running.tenants.secrets["good"], running.account_url
    bearer = {"Authorization": f"Bearer {good}"}
    with httpx.Client(timeout=60) as client:
        url = f"{account_url}/ai/run/{PARROT}"
        for name in running.tenants.secrets:
            if name != "global key":
                client.post(url, json={"prompt": "x"}, headers=running.headers(name))
        client.get(f"{running.gateway.base_url}/user", headers=running.headers("global key"))
        client.post(f"{account_url}/ai/v1/chat/completions", json={}, headers={"x-api-key": good})
        client.post(url + f"?token={good}&api_key={good}", json={"prompt": good, "stream": True}, headers=bearer)
        client.post(url, json={"prompt": script(end="internal"), "user": good}, headers=bearer)
        client.post(url, content=good.encode(), headers=bearer)
        client.get(f"{running.gateway.base_url}/accounts/{good}", headers=bearer)
        client.get(f"{account_url}/tokens/{good}", headers=running.headers("keeper"))
        client.get(f"{running.gateway.url}/{good}", headers=bearer | {"User-Agent": good, "Referer": good})
        client.post(f"{account_url}/ai/run/@cf/{good}/x", json={"prompt": "x"}, headers=bearer)
        client.get(url, headers={"Authorization": f"Basic {good}", "Cookie": f"token={good}", "X-Request-Id": good})
        keyed = bearer | {"idempotency-key": "a-call-of-this-test"}
        for _ in range(2):
            client.post(url, json={"prompt": "keyed"}, headers=keyed)
        client.post(url + "?queueRequest=true", json={"requests": [{"prompt": "queued"}]}, headers=bearer)
        stored = {"model": "@cf/test/manifold", "input": "stored"}
        client.post(f"{account_url}/ai/v1/responses", json=stored, headers=bearer)
        owner = running.headers("global key")
        tokens = f"{running.gateway.base_url}/user/tokens"
        groups = client.get(tokens + "/permission_groups", headers=owner).json()["result"]
        resources = {f"com.cloudflare.api.account.{running.tenants.account_id}": "*"}
        policy = {"effect": "allow", "permission_groups": [{"id": groups[0]["id"]}], "resources": resources}
        made = client.post(tokens, json={"name": "x", "policies": [policy]}, headers=owner).json()["result"]
        rolled = client.put(f"{tokens}/{made['id']}/value", json={}, headers=owner).json()["result"]
        client.get(f"{tokens}/verify", headers={"Authorization": f"Bearer {rolled}"})
        shown += [made["value"], rolled]
    return shown


def test_no_table_log_or_cache_holds_a_usable_token(holding: Holding):
    running = holding.running
    shown = use_everywhere(running)
    wait_until_blocking(lambda: running.gateway.metric("hearth_usage_backlog") == 0)
    known = [*running.tenants.secrets.values(), *shown]
    assert all(len(text) >= 37 for text in known)
    assert found_in(holding, [*known, PEPPER.hex()]) == []
    stores = "Postgres, its files and journal" if holding.servers else "SQLite"
    figure = f"{stores}: 0 of {len(known)} secrets found in tables, Redis, spool, logs and objects"
    figures.record("T1", figure, f"pytest {Path(__file__).name}")


def test_search_finds_planted_tokens_in_every_location(holding: Holding):
    """Planted tokens are found in every location; otherwise an empty search result would prove nothing."""
    marker = "cfut_" + secrets.token_hex(20)
    log = holding.running.gateway.folder / "planted.log"
    with contextlib.closing(Redis.from_url(holding.site.redis.url)) as redis:
        try:
            log.write_text(f"refused {base64.b64encode(marker.encode()).decode()}")
            redis.hset("planted", "field", "x" * 500 + marker)
            name_the_other_account(holding.site, marker)
            found = set(found_in(holding, [marker]))
        finally:
            log.unlink()
            redis.delete("planted")
            name_the_other_account(holding.site, "other")
    assert {"gateway-0/planted.log", "redis b'planted'", "table accounts"} <= found
    if holding.servers:
        assert any(place.startswith("data/pg_wal/") for place in found)


def name_the_other_account(site: Site, name: str) -> None:
    async def write() -> None:
        database = Database.connect(site.database_url)
        async with database.transaction() as connection:
            values = {"name": name, "id": site.tenants.other_account_id}
            await connection.execute(sql("UPDATE accounts SET name = :name WHERE account_id = :id"), values)
        await database.close()

    asyncio.run(write())
