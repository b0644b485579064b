"""The rows about Postgres: away, slow, an answer to a commit lost, an older copy that takes over. Known tokens go on,
and each call is in the ledger once.

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
class Behind:
    """A gateway that sees its database through a proxy."""

    running: Running
    server: PostgresServer
    proxy: FaultProxy
    client: httpx.Client

    def begin(self) -> list[str]:
        """Healthy, and everything told: the calls that are in the ledger."""
        self.proxy.heal()
        wait_until_blocking(lambda: self.running.gateway.metric("hearth_usage_backlog") == 0, 60, 0.1)
        return self.rows()

    def ask(self, secret: str = "") -> httpx.Response:
        url = f"{self.running.account_url}/ai/run/{PARROT}"
        secret = secret or self.running.tenants.secrets["good"]
        return self.client.post(url, json={"prompt": "x"}, headers={"Authorization": f"Bearer {secret}"})

    def why_refused(self, answer: httpx.Response) -> str:
        """What the gateway logged of the store that it lacked; "" while it has not."""
        request_id = answer.headers["x-hearth-request-id"]
        lines = self.running.gateway.log_lines()
        return next((line["why"] for line in lines if "why" in line and line["request_id"] == request_id), "")

    async def new_secret(self) -> str:
        """Of a token that no gateway has seen."""
        database = Database.connect(self.server.url_of("ledger"))
        try:
            account_id = self.running.tenants.account_id
            return (await api_tokens.create(database, PEPPER, account_id, "new", [READ])).secret
        finally:
            await database.close()

    def ids(self, count: int) -> list[str]:
        """Of so many calls by a token that is known: each is answered."""
        answers = [self.ask() for _ in range(count)]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert not refused, [self.why_refused(answer) or answer.text for answer in refused]
        return [answer.headers["cf-ai-req-id"] for answer in answers]

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

    def wait_told(self, ids: list[str]) -> None:
        """Until the ledger has those calls, and them alone."""
        wait_until_blocking(lambda: self.rows() == sorted(ids), 60, 0.2)
        assert self.sql("SELECT sum(num_calls) AS n FROM usage_sums", "ledger")[0]["n"] == len(ids)


@pytest.fixture(scope="module")
def behind(new_site: Callable[..., Site]) -> Iterator[Behind]:
    if find_postgres() is None:
        pytest.skip("no Postgres: neither the pgserver wheel nor initdb on PATH")
    server = PostgresServer()
    server.start()
    try:
        setup = Behind(None, server, None, None)  # type: ignore[arg-type]
        setup.sql("CREATE DATABASE ledger")
        asyncio.run(migrate(server.url_of("ledger")))
        site = new_site(server.url_of("ledger"))
        site.add_node("n1")
        with FaultProxy(server.socket_path) as proxy, httpx.Client(timeout=60) as client:
            gateway = site.gateway(DATABASE_URL=f"postgresql://postgres@127.0.0.1:{proxy.port}/ledger")
            behind = Behind(Running(site, gateway.start()), server, proxy, client)
            assert behind.ask().status_code == 200
            yield behind
            proxy.heal()
            assert errors_in(gateway) == ""
            assert gateway.stop() == 0
    finally:
        server.close()


@pytest.mark.parametrize("how", ["refusing", "parted", "slow"])
def test_known_tokens_work_during_a_database_outage_and_no_usage_is_lost(behind: Behind, how: str):
    ids = behind.begin()
    new = asyncio.run(behind.new_secret())
    if how == "refusing":
        behind.proxy.refuses = True
        behind.proxy.reset()
    elif how == "parted":
        behind.proxy.part()
    else:
        behind.proxy.slow(4.0)
    began_s = time.monotonic()
    ids += behind.ids(20)
    assert time.monotonic() - began_s < 20, "no call waits for the ledger"
    unknown = behind.ask(new)
    assert (unknown.status_code, unknown.json()["errors"][0]["code"]) == (503, 11002)
    assert unknown.headers["retry-after"]
    wait_until_blocking(lambda: behind.why_refused(unknown).startswith("database: "))
    assert behind.ask(behind.running.tenants.secrets["revoked"]).status_code in (401, 503)
    ids += behind.ids(5)
    assert behind.running.gateway.is_ready()
    assert behind.running.gateway.metric("hearth_usage_backlog") >= 20
    behind.proxy.heal()
    behind.proxy.reset()
    behind.wait_told(ids)
    wait_until_blocking(lambda: behind.ask(new).status_code == 200)
    wait_until_blocking(lambda: behind.ask(behind.running.tenants.secrets["revoked"]).status_code == 401)
    told = f"{how}: 25 of 25 calls of a known token answered, an unknown one 503, every call in the ledger after"
    figures.record("P7", told, f"pytest {Path(__file__).name}")


def test_commit_with_a_lost_reply_is_one_row(behind: Behind):
    ids = behind.begin()
    before = behind.proxy.num_answers_lost
    for number in range(before + 1, before + 4):
        behind.proxy.lose_answer(lambda data: b"COMMIT" in data)
        ids += behind.ids(7)
        wait_until_blocking(lambda: behind.proxy.num_answers_lost >= number)  # noqa: B023
        behind.wait_told(ids)
    wait_until_blocking(lambda: behind.running.gateway.metric("hearth_usage_backlog") == 0)
    assert behind.rows() == sorted(ids)


def test_usage_is_sent_again_to_an_older_database_copy(behind: Behind):
    """The ledger as it was before the last calls takes its place, as a replica that lagged does."""
    ids = behind.begin() + behind.ids(10)
    behind.wait_told(ids)
    copy(behind)
    ids += behind.ids(15)
    behind.wait_told(ids)
    switch(behind)
    assert len(behind.rows()) == len(ids) - 15, "the older copy knows less"
    ids += behind.ids(1)
    behind.wait_told(ids)


def copy(behind: Behind) -> None:
    """A database is copied while nobody is connected to it."""
    behind.proxy.refuses = True
    behind.proxy.reset()
    wait_until_blocking(lambda: done(behind, "CREATE DATABASE lagging TEMPLATE ledger"))
    behind.proxy.heal()


def switch(behind: Behind) -> None:
    behind.proxy.refuses = True
    behind.proxy.reset()
    wait_until_blocking(lambda: done(behind, "ALTER DATABASE ledger RENAME TO gone"))
    behind.sql("ALTER DATABASE lagging RENAME TO ledger")
    behind.proxy.heal()


def done(behind: Behind, statement: str) -> bool:
    try:
        behind.sql(statement)
    except asyncpg.ObjectInUseError:
        return False
    return True
