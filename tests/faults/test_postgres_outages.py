"""Postgres faults: outage, delay, a lost reply to a commit, failover to an older copy. Known tokens keep working, and
the ledger has each call once.

A real gateway and a real Postgres with the fault proxy between them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import httpx
import pytest

from bench import figures
from storage.database import Database
from storage.migrate import migrate
from tenants.credentials import api_tokens
from tests.faults.conftest import errors_in
from tests.faults.proxy import FaultProxy
from tests.gateway.process import PARROT, PEPPER
from tests.gateway.site import READ, Running, Site
from tests.postgres_server import PostgresServer, find_postgres
from tests.waiting import wait_until_blocking

pytestmark = pytest.mark.full


@dataclass
class DatabaseBehindProxy:
    """A gateway whose database is proxied a proxy."""

    running: Running
    server: PostgresServer
    proxy: FaultProxy
    client: httpx.Client

    def reset(self) -> list[str]:
        """Remove all faults, wait until all usage is in the ledger, and return the request ids in the ledger."""
        self.proxy.heal()
        wait_until_blocking(lambda: self.running.gateway.metric("hearth_usage_backlog") == 0, 60, 0.1)
        return self.rows()

    def ask(self, secret: str = "") -> httpx.Response:
        url = f"{self.running.account_url}/ai/run/{PARROT}"
        secret = secret or self.running.tenants.secrets["good"]
        return self.client.post(url, json={"prompt": "x"}, headers={"Authorization": f"Bearer {secret}"})

    def logged_store_error(self, response: httpx.Response) -> str:
        """Return the store error that the gateway logged for a request, or ""."""
        request_id = response.headers["x-hearth-request-id"]
        lines = self.running.gateway.log_lines()
        return next((line["why"] for line in lines if "why" in line and line["request_id"] == request_id), "")

    async def new_secret(self) -> str:
        """Return the secret of a new token, which no gateway has cached."""
        database = Database.connect(self.server.url_of("ledger"))
        try:
            account_id = self.running.tenants.account_id
            return (await api_tokens.create(database, PEPPER, account_id, "new", [READ])).secret
        finally:
            await database.close()

    def run_calls(self, count: int) -> list[str]:
        """Make calls with a known token, which must succeed, and return their request ids."""
        responses = [self.ask() for _ in range(count)]
        refused = [response for response in responses if response.status_code != 200]
        assert not refused, [self.logged_store_error(response) or response.text for response in refused]
        return [response.headers["cf-ai-req-id"] for response in responses]

    def sql(self, statement: str, database: str = "postgres") -> list[asyncpg.Record]:
        async def run() -> list[asyncpg.Record]:
            connection = await asyncpg.connect(self.server.url_of(database))
            try:
                return list(await connection.fetch(statement))
            finally:
                await connection.close()

        return asyncio.run(run())

    def rows(self) -> list[str]:
        return sorted(row["request_id"] for row in self.sql("SELECT request_id FROM usage_entries", "ledger"))

    def wait_for_ledger(self, ids: list[str]) -> None:
        """Wait until the ledger contains exactly these calls."""
        wait_until_blocking(lambda: self.rows() == sorted(ids), 60, 0.2)
        assert self.sql("SELECT sum(num_calls) AS n FROM usage_sums", "ledger")[0]["n"] == len(ids)


@pytest.fixture(scope="module")
def proxied(new_site: Callable[..., Site]) -> Iterator[DatabaseBehindProxy]:
    if find_postgres() is None:
        pytest.skip("no Postgres: neither the pgserver wheel nor initdb on PATH")
    server = PostgresServer()
    server.start()
    try:
        setup = DatabaseBehindProxy(None, server, None, None)  # type: ignore[arg-type]
        setup.sql("CREATE DATABASE ledger")
        asyncio.run(migrate(server.url_of("ledger")))
        site = new_site(server.url_of("ledger"))
        site.add_node("n1")
        with FaultProxy(server.socket_path) as proxy, httpx.Client(timeout=60) as client:
            gateway = site.gateway(DATABASE_URL=f"postgresql://postgres@127.0.0.1:{proxy.port}/ledger")
            proxied = DatabaseBehindProxy(Running(site, gateway.start()), server, proxy, client)
            assert proxied.ask().status_code == 200
            yield proxied
            proxy.heal()
            assert errors_in(gateway) == ""
            assert gateway.stop() == 0
    finally:
        server.close()


@pytest.mark.parametrize("fault", ["refused connections", "partition", "delay"])
def test_known_tokens_work_during_a_database_outage_and_no_usage_is_lost(proxied: DatabaseBehindProxy, fault: str):
    ids = proxied.reset()
    new = asyncio.run(proxied.new_secret())
    if fault == "refused connections":
        proxied.proxy.refuses = True
        proxied.proxy.reset()
    elif fault == "partition":
        proxied.proxy.partition()
    else:
        proxied.proxy.delay(4.0)
    began_s = time.monotonic()
    ids += proxied.run_calls(20)
    assert time.monotonic() - began_s < 20, "calls wait for the ledger"
    unknown = proxied.ask(new)
    assert (unknown.status_code, unknown.json()["errors"][0]["code"]) == (503, 11002)
    assert unknown.headers["retry-after"]
    wait_until_blocking(lambda: proxied.logged_store_error(unknown).startswith("database: "))
    assert proxied.ask(proxied.running.tenants.secrets["revoked"]).status_code in (401, 503)
    ids += proxied.run_calls(5)
    assert proxied.running.gateway.is_ready()
    assert proxied.running.gateway.metric("hearth_usage_backlog") >= 20
    proxied.proxy.heal()
    proxied.proxy.reset()
    proxied.wait_for_ledger(ids)
    wait_until_blocking(lambda: proxied.ask(new).status_code == 200)
    wait_until_blocking(lambda: proxied.ask(proxied.running.tenants.secrets["revoked"]).status_code == 401)
    figure = (
        f"{fault}: 25 of 25 calls of a known token answered, an unknown one 503, every call in the ledger afterwards"
    )
    figures.record("P7", figure, f"pytest {Path(__file__).name}")


def test_commit_with_a_lost_reply_is_one_row(proxied: DatabaseBehindProxy):
    ids = proxied.reset()
    before = proxied.proxy.num_lost_responses
    for number in range(before + 1, before + 4):
        proxied.proxy.lose_response(lambda data: b"COMMIT" in data)
        ids += proxied.run_calls(7)
        wait_until_blocking(lambda: proxied.proxy.num_lost_responses >= number)  # noqa: B023
        proxied.wait_for_ledger(ids)
    wait_until_blocking(lambda: proxied.running.gateway.metric("hearth_usage_backlog") == 0)
    assert proxied.rows() == sorted(ids)


def test_usage_is_sent_again_to_an_older_database_copy(proxied: DatabaseBehindProxy):
    """The database is replaced by a copy from before the last calls, as after a failover to a lagging replica."""
    ids = proxied.reset() + proxied.run_calls(10)
    proxied.wait_for_ledger(ids)
    copy_database(proxied)
    ids += proxied.run_calls(15)
    proxied.wait_for_ledger(ids)
    fail_over(proxied)
    assert len(proxied.rows()) == len(ids) - 15, "the copy has the last calls already"
    ids += proxied.run_calls(1)
    proxied.wait_for_ledger(ids)


def copy_database(proxied: DatabaseBehindProxy) -> None:
    """Copy the database while the proxy keeps all connections away, as `CREATE DATABASE … TEMPLATE` requires."""
    proxied.proxy.refuses = True
    proxied.proxy.reset()
    wait_until_blocking(lambda: try_sql(proxied, "CREATE DATABASE lagging TEMPLATE ledger"))
    proxied.proxy.heal()


def fail_over(proxied: DatabaseBehindProxy) -> None:
    proxied.proxy.refuses = True
    proxied.proxy.reset()
    wait_until_blocking(lambda: try_sql(proxied, "ALTER DATABASE ledger RENAME TO gone"))
    proxied.sql("ALTER DATABASE lagging RENAME TO ledger")
    proxied.proxy.heal()


def try_sql(proxied: DatabaseBehindProxy, statement: str) -> bool:
    try:
        proxied.sql(statement)
    except asyncpg.ObjectInUseError:
        return False
    return True
