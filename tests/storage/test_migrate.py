"""storage/migrate.py on both databases."""

from __future__ import annotations

import asyncio
import re
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

import catalog.tables
import tenants.tables
from storage.database import Database, metadata
from storage.errors import StoreUnavailable
from storage.migrate import current_revision, head_revision, migrate

_VERSIONS = sorted(Path(__file__).resolve().parents[2].glob("migrations/versions/[0-9]*.py"))
_TABLES: tuple[ModuleType, ...] = (catalog.tables, tenants.tables)


@pytest.fixture(params=["sqlite", "postgres"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite://{tmp_path / 'folder' / 'hearth.db'}"
    url: str = request.getfixturevalue("new_postgres_url")
    return url


async def test_second_migration_has_no_effect(new_url: str) -> None:
    assert await current_revision(new_url) is None
    assert await migrate(new_url) == head_revision()
    assert await current_revision(new_url) == head_revision()
    assert await migrate(new_url) == head_revision()


async def test_concurrent_migrations_all_succeed(new_url: str) -> None:
    program = "import asyncio, sys; from storage.migrate import migrate; print(asyncio.run(migrate(sys.argv[1])))"
    command = [sys.executable, "-W", "error", "-c", program, new_url]
    processes = [
        await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)
    ]
    outputs = [await process.communicate() for process in processes]
    assert [(out.decode().strip(), err.decode()) for out, err in outputs] == [(head_revision(), "")] * 3


async def test_migrations_create_exactly_the_declared_tables(database: Database) -> None:
    def differences(connection: Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), metadata))

    async with database.connection() as connection:
        assert await connection.run_sync(differences) == []


async def test_database_of_a_newer_version_is_left_unchanged(new_url: str) -> None:
    await migrate(new_url)
    database = Database.connect(new_url)
    async with database.transaction() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await database.close()
    assert await migrate(new_url) == "9999"


def test_migrations_are_numbered_without_branches() -> None:
    for before, file in zip([None, *_VERSIONS], _VERSIONS, strict=False):
        number = file.name[:4]
        down = "None" if before is None else f'"{before.name[:4]}"'
        assert re.search(rf'^revision = "{number}"$', file.read_text(), re.MULTILINE), file
        assert re.search(rf"^down_revision = {down}$", file.read_text(), re.MULTILINE), file
    assert head_revision() == _VERSIONS[-1].name[:4]


async def test_failed_migration_is_rolled_back(tmp_path: Path) -> None:
    path = tmp_path / "hearth.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE usage_entries (in_the_way INTEGER)")
    connection.close()
    with pytest.raises(Exception, match="already exists"):
        await migrate(f"sqlite://{path}")
    assert await current_revision(f"sqlite://{path}") is None
    with sqlite3.connect(path) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    connection.close()
    assert tables == ["usage_entries"]


async def test_unreachable_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"this is not a database" * 100)
    for url in (f"sqlite://{tmp_path / 'x.db'}", f"postgresql://postgres@/x?host={tmp_path}"):
        with pytest.raises(StoreUnavailable):
            await migrate(url)


def test_current_revision_is_read_without_importing_alembic_or_sqlalchemy(sqlite_url: str) -> None:
    program = (
        "import asyncio, sys; from storage.migrate import migrate\n"
        "assert asyncio.run(migrate(sys.argv[1]))\n"
        "assert not {'alembic', 'sqlalchemy'} & set(sys.modules), 'imported for nothing'\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program, sqlite_url], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 3.0  # CPU seconds, which do not depend on the load of the machine
