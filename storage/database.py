"""The SQL database: SQLite in WAL mode, or Postgres. Transactions over SQLAlchemy Core; no ORM.

Translates driver errors and knows nothing about individual tables. Connects on first use.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import MetaData, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.schema import Table

from storage.columns import UtcDateTime, new_id_hex, utc_day, utc_floor, uuid7, uuid7_floor
from storage.database_url import parse_database_url
from storage.errors import Conflict, StoreUnavailable, means_lost
from storage.sqlite_engine import READ_ONLY, sqlite_engine
from telemetry.fair_share import FairQueue, NoTurn, current_account

__all__ = [
    "Database",
    "UtcDateTime",
    "insert_adding",
    "insert_new",
    "insert_replacing",
    "metadata",
    "new_id_hex",
    "utc_day",
    "utc_floor",
    "uuid7",
    "uuid7_floor",
]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_THREAD_END_S = 1.0
# SQLite result codes for a database that is busy or a disk that fails, as opposed to an invalid statement.
_SQLITE_UNAVAILABLE = (
    "BUSY",
    "LOCKED",
    "IOERR",
    "FULL",
    "CANTOPEN",
    "READONLY",
    "PROTOCOL",
    "CORRUPT",
    "NOTADB",
    "NOLFS",
)
# The corresponding SQLSTATE classes: connection, authorization, unknown database, insufficient resources, operator
# intervention and system error. The single codes are for a read-only server, a serialization failure and a deadlock.
_POSTGRES_UNAVAILABLE = ("08", "28", "3D", "53", "57", "58", "25006", "40001", "40P01")


class Database:
    """A database shared by the whole process. `dialect` is `sqlite` or `postgresql`."""

    def __init__(
        self,
        engine: AsyncEngine,
        threads: Collection[threading.Thread] = (),
        *,
        max_connections: int = 10,
        pool_timeout_s: float = 1.0,
    ) -> None:
        self._engine = engine
        self._threads = threads
        self.dialect = engine.dialect.name
        # SQLite allows one writer at a time. Accounts wait in turn; SQLite's own busy handler sleeps and polls.
        self._writers = FairQueue(1) if self.dialect == "sqlite" else None
        self._connections = FairQueue(max_connections)
        self._pool_timeout_s = pool_timeout_s
        # On Postgres, BEGIN and COMMIT would add two round trips to each read and protect nothing.
        self._read_options = {READ_ONLY: True} if self.dialect == "sqlite" else {"isolation_level": "AUTOCOMMIT"}

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        pool_size: int = 5,
        pool_timeout_s: float = 1.0,
        statement_timeout_s: float = 5.0,
        connect_timeout_s: float = 2.0,
    ) -> Database:
        """Create a database client without connecting. `statement_timeout_s` limits one statement, including the wait
        for another writer's lock. `connect_timeout_s` applies only to Postgres.

        Raises ValueError if the URL names neither SQLite nor Postgres.
        """
        parsed = parse_database_url(url)
        # Rows can hold secrets, and an error's text can be logged.
        options: dict[str, Any] = {"hide_parameters": True, "pool_timeout": pool_timeout_s}
        options |= {"pool_size": pool_size, "max_overflow": pool_size}
        limits: dict[str, Any] = {"max_connections": 2 * pool_size, "pool_timeout_s": pool_timeout_s}
        if parsed.path is not None:
            return cls(*sqlite_engine(parsed, statement_timeout_s, options), **limits)
        timeouts = {"timeout": connect_timeout_s, "command_timeout": statement_timeout_s}
        engine = create_async_engine(parsed.for_sqlalchemy, connect_args=timeouts, pool_pre_ping=True, **options)
        return cls(engine, **limits)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Open a read-write transaction. Commits at the end of the block and rolls back if the block raises.

        The block should contain database work only. Raises Conflict if a row violates a constraint, and
        StoreUnavailable if the database is unavailable or stays busy; the transaction may then have been committed.
        """
        account_id = current_account.get()
        async with self._writers.slot(account_id) if self._writers is not None else contextlib.nullcontext():
            with _translated():
                async with self._connections.slot(account_id, self._pool_timeout_s), self._engine.begin() as connection:
                    yield connection

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection]:
        """Open a connection for reading, without a transaction. On SQLite, reads never wait for a writer. Raises
        StoreUnavailable."""
        with _translated():
            async with (
                self._connections.slot(current_account.get(), self._pool_timeout_s),
                self._engine.connect() as connection,
            ):
                await connection.execution_options(**self._read_options)
                yield connection

    async def ping(self) -> None:
        """Run a trivial query. Raises StoreUnavailable if the database does not respond."""
        async with self.connection() as connection:
            await connection.execute(text("SELECT 1"))

    async def now(self) -> datetime:
        """Return the database's clock as an aware UTC time in whole seconds. Raises StoreUnavailable."""
        clock = "strftime('%s', 'now')" if self.dialect == "sqlite" else "extract(epoch FROM clock_timestamp())"
        async with self.connection() as connection:
            now_s = (await connection.execute(text(f"SELECT CAST({clock} AS bigint)"))).scalar_one()
            return datetime.fromtimestamp(now_s, UTC)

    async def close(self) -> None:
        """Close all idle connections and wait for their threads. Connections still in use are not closed."""
        await self._engine.dispose()
        for thread in list(self._threads):
            await asyncio.to_thread(thread.join, _THREAD_END_S)


def insert_new(table: Table, dialect: str, *, key: str | Sequence[str]) -> Insert:
    """Return an INSERT that skips rows whose `key` (one or more columns) already exists."""
    columns = [key] if isinstance(key, str) else list(key)
    return _insert(table, dialect).on_conflict_do_nothing(index_elements=columns)


def insert_adding(table: Table, dialect: str, *, sums: Collection[str], source: Any = None) -> Insert:
    """Return an INSERT that adds the columns `sums` to an existing row with the same primary key. `source`, if given,
    is a SELECT of all columns in table order that replaces the values."""
    if source is None:
        return _insert_adding(table, dialect, tuple(sums))
    selected = _insert(table, dialect).from_select([column.name for column in table.c], source)
    return _adding(selected, table, sums)


@lru_cache(maxsize=64)
def _insert_adding(table: Table, dialect: str, sums: tuple[str, ...]) -> Insert:
    return _adding(_insert(table, dialect), table, sums)


def _insert(table: Table, dialect: str) -> sqlite.Insert | postgresql.Insert:
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


def _adding(statement: sqlite.Insert | postgresql.Insert, table: Table, sums: Collection[str]) -> Insert:
    keys = [column.name for column in table.primary_key]
    added = {name: table.c[name] + statement.excluded[name] for name in sums}
    return statement.on_conflict_do_update(index_elements=keys, set_=added)


@lru_cache(maxsize=64)
def insert_replacing(table: Table, dialect: str) -> Insert:
    """Return an INSERT that replaces an existing row with the same primary key."""
    keys = [column.name for column in table.primary_key]
    statement = _insert(table, dialect)
    others = {column.name: statement.excluded[column.name] for column in table.c if column.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=others)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        raise Conflict(_first_line(error)) from error
    except DBAPIError as error:
        if _means_unavailable(error):
            raise StoreUnavailable(f"database: {_first_line(error)}") from error
        raise
    except (PoolTimeout, NoTurn) as error:
        raise StoreUnavailable("database: all connections are in use") from error
    except (OSError, TimeoutError) as error:
        raise StoreUnavailable(f"database: {type(error).__name__}") from error
    except RuntimeError as error:
        if means_lost(error):
            raise StoreUnavailable("database: the connection was lost") from error
        raise


def _means_unavailable(error: DBAPIError) -> bool:
    if error.connection_invalidated:
        return True
    sqlite_name = getattr(error.orig, "sqlite_errorname", None)
    if sqlite_name is not None:
        return str(sqlite_name).removeprefix("SQLITE_").startswith(_SQLITE_UNAVAILABLE)
    code = getattr(error.orig, "sqlstate", None)
    if code is not None:
        return str(code).startswith(_POSTGRES_UNAVAILABLE)
    # asyncpg's InterfaceError has no code and is raised when the connection is closed or lost.
    return "connection" in str(error.orig).lower()


def _first_line(error: DBAPIError) -> str:
    lines = str(error.orig).splitlines()
    return lines[0] if lines else type(error.orig).__name__
