"""Runs the Cloudflare Python SDK's own test files against a gateway with fake nodes: `python -m tests.clients.sdk_suite
FOLDER PYTHON [pytest arguments]`. FOLDER is the unpacked source distribution (the wheel has no tests), PYTHON has what
its files need; `make test-full` makes both in `.venv-clients`.

The suite's account, email and global key are created in a database of this run's own, with the fine-tune that the suite
uploads files to. The suite writes placeholders where values are expected (the account `account_id`, the model `model`,
the file `file_name`), and calls one text model with every task's input. `tests/gateway/echo_proxy.py` in front of the
gateway replaces the placeholders and echoes those inputs. The suite deletes one account, and creates a fine-tune of one
name, many times: before each time `tests/clients/python/sdk_tenant.py`, a pytest plugin, restores both.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
from sqlalchemy import delete, insert, update

from catalog.finetunes import Finetune
from catalog.tables import finetunes
from storage.database import Database
from storage.ephemeral import Ephemeral
from storage.migrate import migrate
from tenants import accounts, tables, users
from tenants.change_context import ChangeContext
from tenants.credentials import decision_epoch
from tests.gateway.echo_proxy import TUNABLE_MODEL, run_echo_proxy
from tests.gateway.process import PEPPER
from tests.gateway.site import Site
from tests.waiting import PATIENCE_S, wait_until_blocking

ACCOUNT_ID = "023e105f4ecef8ad9ca31a8372d0c353"
DELETED_ACCOUNT_ID = "d" * 32  # stands for the placeholder `account_id`
EMAIL, KEY = "user@example.com", "144c9defac04969c7bfad8efaa8ea194"
FINETUNE_ID, FINETUNE_NAME = "bc451aef-f723-4b26-a6b2-901afd2e7a8a", "name"
FAMILIES = (
    "test_accounts.py", "accounts/test_tokens.py", "accounts/tokens", "test_user.py", "user/test_tokens.py",
    "user/tokens",
    "test_ai.py", "ai/models", "ai/test_models.py", "ai/test_authors.py", "ai/test_tasks.py",
    "ai/test_finetunes.py", "ai/finetunes", "ai/test_to_markdown.py",
)  # fmt: skip
KNOWN = Path(__file__).with_name("sdk_suite_known.txt")
PLUGINS = Path(__file__).with_name("python")


@dataclass(frozen=True)
class Report:
    """Outcomes of the suite's tests by name; `counts` has passed, skipped and failed."""

    counts: dict[str, int]
    failures: dict[str, str]

    def __str__(self) -> str:
        figure = ", ".join(f"{count} {word}" for word, count in sorted(self.counts.items()))
        return "\n".join([figure, *(f"{name}: {why}" for name, why in sorted(self.failures.items()))])


def known_failures() -> list[str]:
    """Return the names of the tests that cannot pass; the file gives the reasons."""
    lines = KNOWN.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


async def seed(database_url: str) -> str:
    """Create the suite's tenant with a finetune, and the account that the suite deletes. Return the user's id."""
    database = Database.connect(database_url)
    await accounts.create(database, "SDK", ACCOUNT_ID)
    often = accounts.Account(DELETED_ACCOUNT_ID, "deleted often", "active", "paid", datetime.now(UTC))
    now = datetime.now(UTC)
    tuned = Finetune(FINETUNE_ID, ACCOUNT_ID, "brought", TUNABLE_MODEL, "", False, now, now, None, None, None, None)
    async with database.transaction() as connection:
        await accounts.insert_account(connection, often, ChangeContext("sdk suite"))
        await connection.execute(insert(finetunes).values(vars(tuned)))
    members = (ACCOUNT_ID, DELETED_ACCOUNT_ID)
    created = await users.create(database, PEPPER, EMAIL, members, global_key=KEY)
    await database.close()
    return created.user.user_id


async def restore(database_url: str, redis_url: str, user_id: str) -> None:
    """Restore the deleted account and its member, and remove the finetune whose name the suite reuses."""
    database, ephemeral = Database.connect(database_url), Ephemeral.connect(redis_url, timeout_s=PATIENCE_S)
    async with database.transaction() as connection:
        epoch = await decision_epoch.raise_epoch(connection)
        back = {"status": "active", "deleted_at": None, "decision_epoch": epoch}
        is_it = tables.accounts.c.account_id == DELETED_ACCOUNT_ID
        await connection.execute(update(tables.accounts).where(is_it).values(**back))
        is_member = tables.users.c.user_id == user_id
        await connection.execute(update(tables.users).where(is_member).values(decision_epoch=epoch))
        await connection.execute(delete(finetunes).where(finetunes.c.name == FINETUNE_NAME))
    await ChangeContext(ephemeral=ephemeral).notify(user_id)
    await ephemeral.close()
    await database.close()


@contextlib.contextmanager
def restoring_server(site: Site, base_url: str, user_id: str) -> Iterator[str]:
    """A server that restores this state on every request; yields its URL."""
    headers = {"X-Auth-Email": EMAIL, "X-Auth-Key": KEY}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asyncio.run(restore(site.database_url, site.redis.url, user_id))
            account_url = f"{base_url}/accounts/{DELETED_ACCOUNT_ID}"
            wait_until_blocking(lambda: httpx.get(account_url, headers=headers).status_code == 200)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def run(folder: Path, python: Path, arguments: list[str]) -> Report:
    """Run the suite, or the part that the arguments select."""
    with tempfile.TemporaryDirectory() as own, contextlib.ExitStack() as stack:
        database_url = f"sqlite://{own}/hearth.db"
        asyncio.run(migrate(database_url))
        user_id = asyncio.run(seed(database_url))
        site = Site(Path(own) / "hearth.db")
        stack.callback(site.close)
        site.add_node("n1")
        objects = f"file://{own}/objects"
        gateway = site.gateway(OBJECTS_URL=objects).start()
        proxy_url = stack.enter_context(run_echo_proxy(gateway.base_url, ACCOUNT_ID, DELETED_ACCOUNT_ID))
        result = Path(own) / "junit.xml"
        environ = os.environ | {
            "TEST_API_BASE_URL": proxy_url,
            "SDK_TENANT_URL": stack.enter_context(restoring_server(site, gateway.base_url, user_id)),
            "PYTHONPATH": os.pathsep.join(["src", str(PLUGINS)]),
        }
        command = [str(python), "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "sdk_tenant", "-q"]
        files = arguments or [f"tests/api_resources/{family}" for family in FAMILIES]
        done = subprocess.run(
            [*command, f"--junitxml={result}", *files], cwd=folder, env=environ, check=False, capture_output=True
        )
        if not result.exists():
            raise RuntimeError((done.stdout + done.stderr).decode()[-4000:])
        return read_report(result)


def read_report(file: Path) -> Report:
    """Parse pytest's report of a run."""
    counts: Counter[str] = Counter()
    failures: dict[str, str] = {}
    for case in ElementTree.parse(file).iter("testcase"):
        kinds = {child.tag for child in case}
        word = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts[word] += 1
        if word == "failed":
            module, _, name = f"{case.get('classname')}.{case.get('name')}".partition(".Test")
            why = next(child.get("message", "") for child in case if child.tag in ("failure", "error"))
            failures[f"{module}.Test{name}"] = why.splitlines()[0]
    return Report(dict(counts), failures)


if __name__ == "__main__":
    report = run(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).absolute(), sys.argv[3:])
    sys.stdout.write(f"{report}\n")
    sys.exit(0 if sorted(report.failures) == sorted(known_failures()) else 1)
