"""Upgrade a database to this version's schema once, under a lock.

Migration files are numbered `NNNN_what_changes.py` without branches, so revisions compare as text. Alembic is imported
only if there is something to do. A database of a newer version is left unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import re
import sqlite3
from pathlib import Path

from storage.database_url import DatabaseUrl, parse_database_url
from storage.errors import StoreUnavailable

_LOCK_ID = 0x48656172746800  # an arbitrary advisory lock id that only this program uses
_LOCK_TIMEOUT_S = 60.0


async def migrate(url: str) -> str:
    """Upgrade to the newest schema of this version; return the resulting revision.

    Any number of processes may call this concurrently: one works, the others wait. Raises StoreUnavailable, and
    ValueError for an invalid URL.
    """
    parsed = parse_database_url(url)
    head = head_revision()
    current = await current_revision(url)
    if current is not None and current >= head:
        return current
    return await _upgrade(url, parsed, head)


async def current_revision(url: str) -> str | None:
    """Return the database's revision; None if it has no Hearth tables. Raises StoreUnavailable."""
    parsed = parse_database_url(url)
    if parsed.path is not None:
        return await asyncio.to_thread(_sqlite_revision, parsed.path)
    return await _postgres_revision(parsed.dsn)


def head_revision() -> str:
    """Return the newest revision of this version."""
    numbers = [match[1] for file in _migrations().glob("versions/*.py") if (match := re.match(r"(\d{4})_", file.name))]
    return max(numbers)


def _migrations() -> Path:
    spec = importlib.util.find_spec("migrations")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def _sqlite_revision(path: Path) -> str | None:
    if not path.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S)) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return None
        raise StoreUnavailable(f"database: {error}") from error
    except sqlite3.DatabaseError as error:
        raise StoreUnavailable(f"database: {error}") from error
    return row[0] if row else None


async def _postgres_revision(dsn: str) -> str | None:
    import asyncpg

    try:
        connection = await asyncpg.connect(dsn, timeout=5.0)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise StoreUnavailable(f"database: {type(error).__name__}: {error}") from error
    try:
        if await connection.fetchval("SELECT to_regclass('alembic_version')") is None:
            return None
        revision: str | None = await connection.fetchval("SELECT version_num FROM alembic_version")
        return revision
    finally:
        await connection.close()


async def _upgrade(url: str, parsed: DatabaseUrl, head: str) -> str:
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import text

    from storage.database import Database

    if parsed.path is not None:
        parsed.path.parent.mkdir(parents=True, exist_ok=True)
    config = Config()
    config.set_main_option("script_location", str(_migrations()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    database = Database.connect(url, statement_timeout_s=_LOCK_TIMEOUT_S)
    try:
        # On SQLite, opening the transaction takes the only write lock, which serves as the lock.
        async with database.transaction() as connection:
            if database.dialect == "postgresql":
                await connection.execute(text("SELECT pg_advisory_xact_lock(:id)"), {"id": _LOCK_ID})

            def upgrade(sync_connection: object) -> None:
                config.attributes["connection"] = sync_connection
                command.upgrade(config, head)

            await connection.run_sync(upgrade)
    finally:
        await database.close()
    return head
