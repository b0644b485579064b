"""Runs the Cloudflare Python SDK's own test files against a gateway with fake nodes: `python -m tests.gateway.sdk_suite
FOLDER [pytest arguments]`, where FOLDER is the unpacked source distribution (the wheel has no tests).

The suite's account, email and global key are made in a database of this run's own. By default it runs the families
about accounts, tokens and the catalog. What fails there deletes an account by the literal id `account_id`, which is
none; its clients over aiohttp need the package httpx-aiohttp. `test_ai.py` calls one text model with every task's
input, which a model that checks its input refuses (400/5006).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from storage.database import Database
from storage.migrate import migrate
from tenants import accounts, users
from tests.gateway.process import PEPPER
from tests.gateway.site import Site

ACCOUNT_ID = "023e105f4ecef8ad9ca31a8372d0c353"
EMAIL, KEY = "user@example.com", "144c9defac04969c7bfad8efaa8ea194"
FAMILIES = (
    "test_accounts.py", "accounts/test_tokens.py", "accounts/tokens", "user/test_tokens.py", "user/tokens",
    "ai/models", "ai/test_models.py", "ai/test_authors.py", "ai/test_tasks.py",
)  # fmt: skip


async def seed(database_url: str) -> None:
    """The suite's tenant."""
    database = Database.connect(database_url)
    await accounts.create(database, "SDK", ACCOUNT_ID)
    await users.create(database, PEPPER, EMAIL, (ACCOUNT_ID,), global_key=KEY)
    await database.close()


def main(folder: Path, arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as own:
        database_file = Path(own) / "hearth.db"
        asyncio.run(migrate(f"sqlite://{database_file}"))
        asyncio.run(seed(f"sqlite://{database_file}"))
        site = Site(database_file)
        try:
            site.add_node("n1")
            gateway = site.gateway().start()
            files = [f"tests/api_resources/{family}" for family in FAMILIES]
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-o",
                "addopts=",
                "-p",
                "no:cacheprovider",
                "-q",
                *(arguments or files),
            ]
            environ = os.environ | {"TEST_API_BASE_URL": gateway.base_url, "PYTHONPATH": "src"}
            return subprocess.run(command, cwd=folder, env=environ, check=False).returncode
        finally:
            site.close()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
