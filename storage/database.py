"""The SQL database: SQLite in WAL mode, or Postgres. Transactions over SQLAlchemy Core; no ORM.

Knows rows and how a driver fails, not what any table means. Nothing connects before the first use.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from sqlalchemy import MetaData, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.schema import Table
from sqlalchemy.util import await_only

from storage.columns import UtcDateTime, new_id_hex, utc_day, uuid7
from storage.database_url import DatabaseUrl, parse_database_url
from storage.errors import Conflict, StoreUnavailable

__all__ = ["Database", "UtcDateTime", "insert_new", "metadata", "new_id_hex", "utc_day", "uuid7"]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_READ_ONLY = "hearth_read_only"
# SQLite result codes that say "not now" or "not this disk", rather than "your statement is wrong".
_SQLITE_AWAY = ("BUSY", "LOCKED", "IOERR", "FULL", "CANTOPEN", "READONLY", "PROTOCOL", "CORRUPT", "NOTADB", "NOLFS")
# SQLSTATE classes likewise: connection, authorisation, no such database, out of resources, operator, system; and the
# single codes for a read-only server and for a transaction that lost a race and may be run again.
_POSTGRES_AWAY = ("08", "28", "3D", "53", "57", "58", "25006", "40001", "40P01")


class Database:
    """One database, shared by a whole process. `dialect` is `sqlite` or `postgresql`."""

    def __init__(self, engine: AsyncEngine, url: DatabaseUrl) -> None:
        self._engine = engine
        self._url = url
        # SQLite takes one writer at a time. Waiting here is fair and free; its own busy handler sleeps and polls.
        self._writer = asyncio.Lock() if url.dialect == "sqlite" else None

    @classmethod
    def connect(
        cls, url: str, *, pool_size: int = 5, pool_timeout_s: float = 1.0, statement_timeout_s: float = 5.0
    ) -> Database:
        """Opens nothing yet. `statement_timeout_s` bounds one statement, another writer's lock included.

        Raises ValueError for a URL that names neither database.
        """
        parsed = parse_database_url(url)
        # hide_parameters: an error's text may end in a log, and rows hold what must not.
        pool = {"pool_size": pool_size, "max_overflow": pool_size, "pool_timeout": pool_timeout_s}
        arguments: dict[str, Any] = {**pool, "hide_parameters": True}
        if parsed.dialect == "sqlite":
            # isolation_level None: the driver begins nothing by itself, we do (see _begin_sqlite).
            arguments["connect_args"] = {"isolation_level": None, "timeout": statement_timeout_s}
        else:
            arguments["connect_args"] = {"timeout": 2.0, "command_timeout": statement_timeout_s}
            arguments["pool_pre_ping"] = True
        engine = create_async_engine(parsed.for_sqlalchemy, **arguments)
        if parsed.dialect == "sqlite":
            event.listen(engine.sync_engine, "connect", _prepare_sqlite)
            event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return cls(engine, parsed)

    @property
    def dialect(self) -> str:
        return self._url.dialect

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that may write: committed at the end of the block, rolled back when it raises.

        The block holds database work only. Raises StoreUnavailable when the database is away or stays busy (nothing
        is then known of a commit whose answer was lost), Conflict when a constraint refuses a row.
        """
        async with self._writer or contextlib.nullcontext():
            with _translated():
                async with self._engine.begin() as connection:
                    yield connection

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection]:
        """A connection to read with; on SQLite it never waits for a writer. Raises StoreUnavailable."""
        with _translated():
            async with self._engine.connect() as connection:
                await connection.execution_options(**{_READ_ONLY: True})
                yield connection

    async def ping(self) -> None:
        """Returns when the database answers a query, else raises StoreUnavailable."""
        async with self.connection() as connection:
            await connection.execute(text("SELECT 1"))

    async def close(self) -> None:
        await self._engine.dispose()


def insert_new(table: Table, dialect: str, *, key: str) -> Insert:
    """An INSERT into `table` that leaves a row alone whose `key` is already there."""
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing(index_elements=[key])
    return postgresql.insert(table).on_conflict_do_nothing(index_elements=[key])


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        raise Conflict(_first_line(error)) from error
    except DBAPIError as error:
        if _means_away(error):
            raise StoreUnavailable(f"database: {_first_line(error)}") from error
        raise
    except PoolTimeout as error:
        raise StoreUnavailable("database: every connection is in use") from error
    except (OSError, TimeoutError) as error:
        raise StoreUnavailable(f"database: {type(error).__name__}") from error


def _means_away(error: DBAPIError) -> bool:
    if error.connection_invalidated:
        return True
    sqlite_name = getattr(error.orig, "sqlite_errorname", None)
    if sqlite_name is not None:
        return str(sqlite_name).removeprefix("SQLITE_").startswith(_SQLITE_AWAY)
    code = getattr(error.orig, "sqlstate", None)
    if code is not None:
        return str(code).startswith(_POSTGRES_AWAY)
    # No code at all: asyncpg's own InterfaceError family, raised when the connection is closed or was lost.
    return "connection" in str(error.orig).lower()


def _first_line(error: DBAPIError) -> str:
    lines = str(error.orig).splitlines()
    return lines[0] if lines else type(error.orig).__name__


def _prepare_sqlite(connection: DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    try:
        _enter_wal_mode(cursor)
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()
    except BaseException:
        connection.close()  # the pool drops, unclosed, a connection that fails here
        raise


def _enter_wal_mode(cursor: Any) -> None:
    """WAL mode is kept in the file. Entering it needs the file alone for a moment and does not honour the busy
    timeout, so two processes that open a new file together settle it by trying again."""
    for attempt in range(100):
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            cursor.fetchall()
        except Exception as error:
            if not str(getattr(error, "sqlite_errorname", "")).startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise
            if attempt == 99:
                raise
            await_only(asyncio.sleep(0.02))
        else:
            return


def _begin_sqlite(connection: Any) -> None:
    """A writer takes the write lock at once: upgrading a read to a write later fails without waiting its turn."""
    read_only = connection.get_execution_options().get(_READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
