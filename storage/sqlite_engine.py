"""The SQLite engine: WAL mode, every commit synced to disk, one writer at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiosqlite
from sqlalchemy import event
from sqlalchemy.connectors.asyncio import AsyncAdapt_dbapi_connection
from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection, AsyncAdapt_aiosqlite_cursor
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from storage.database_url import DatabaseUrl

READ_ONLY = "hearth_read_only"
"""The execution option of a connection that will only read."""


class _Result(NamedTuple):
    """The result of a statement."""

    rows: Sequence[Any] = ()
    description: Any = None
    rowcount: int = -1
    lastrowid: int = 0


class _Cursor(AsyncAdapt_aiosqlite_cursor):
    """A cursor that opens, runs, reads and closes in one call to the connection's thread instead of four."""

    __slots__ = ("_result", "arraysize")

    def __init__(self, adapt_connection: AsyncAdapt_dbapi_connection) -> None:
        self._adapt_connection = adapt_connection
        self._connection = adapt_connection._connection
        self._cursor = None  # type: ignore[assignment]
        self._rows = deque()
        self._result = _Result()
        self.arraysize = 1

    @property
    def description(self) -> Any:
        return self._result.description

    @property
    def rowcount(self) -> int:
        return self._result.rowcount

    @property
    def lastrowid(self) -> int:
        return self._result.lastrowid

    async def _execute_async(self, operation: Any, parameters: Any) -> None:
        await self._run_statement(sqlite3.Connection.execute, operation, parameters or ())

    async def _executemany_async(self, operation: Any, seq_of_parameters: Any) -> None:
        await self._run_statement(sqlite3.Connection.executemany, operation, seq_of_parameters)

    async def _run_statement(self, run: Callable[..., sqlite3.Cursor], operation: Any, parameters: Any) -> None:
        connection: Any = self._connection
        async with self._adapt_connection._execute_mutex:
            self._result = await connection._execute(_run_and_read, run, connection._conn, operation, parameters)
            self._rows = deque(self._result.rows)

    async def _async_soft_close(self) -> None:
        """Do nothing: the SQLite cursor was closed after its statement ran."""


def _run_and_read(
    run: Callable[..., sqlite3.Cursor], connection: sqlite3.Connection, operation: Any, parameters: Any
) -> _Result:
    """Run a statement and read all rows. Called in the connection's thread."""
    with contextlib.closing(run(connection, operation, parameters)) as cursor:
        rows = cursor.fetchall() if cursor.description else []
        return _Result(rows, cursor.description, cursor.rowcount, cursor.lastrowid or 0)


class _Connection(AsyncAdapt_aiosqlite_connection):
    """A connection that skips ROLLBACK if no transaction was begun, so that a read is one call to the thread."""

    __slots__ = ("has_begun",)

    _cursor_cls = _Cursor

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.has_begun = False  # also True once BEGIN is submitted: it runs even if its waiter is cancelled

    def commit(self) -> None:
        super().commit()
        self.has_begun = False

    def rollback(self) -> None:
        if self.has_begun:
            super().rollback()
            self.has_begun = False


def sqlite_engine(
    url: DatabaseUrl, timeout_s: float, options: dict[str, Any]
) -> tuple[AsyncEngine, weakref.WeakSet[threading.Thread]]:
    """Create an engine for one file. Return the engine and the threads of its connections: one thread each, which may
    outlive a connection that was cancelled or could not be opened. `timeout_s` limits the wait for a lock."""
    threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    async def connect() -> aiosqlite.Connection:
        _create_private(url.path)
        # With isolation_level None the driver begins no transactions; `_begin` does.
        opening = aiosqlite.connect(
            str(url.path), isolation_level=None, timeout=timeout_s, check_same_thread=False, cached_statements=256
        )
        opening._thread.daemon = True
        threads.add(opening._thread)
        return await opening

    def adapted(dialect: Any, *_arguments: object) -> Any:
        opening: Any = connect()
        return await_only(_Connection.create(dialect.loaded_dbapi, opening))

    engine = create_async_engine(url.for_sqlalchemy, **options)
    event.listen(engine.sync_engine, "do_connect", adapted)
    event.listen(engine.sync_engine, "connect", _prepare)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine, threads


def _create_private(path: Path | None) -> None:
    """Create the database file with mode 0600 if it does not exist. SQLite gives its journal and WAL the same mode.
    An existing file is left unchanged."""
    assert path is not None
    with contextlib.suppress(OSError):  # reported by SQLite when it opens the file
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _prepare(connection: DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    try:
        _enter_wal_mode(cursor)
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()
    except BaseException:
        connection.close()  # the pool does not close a connection that fails here
        raise


def _enter_wal_mode(cursor: Any) -> None:
    """Enter WAL mode, which SQLite stores in the file. The switch needs an exclusive lock and ignores the busy
    timeout, so it is retried when several processes open a new file together."""
    for attempt in range(100):
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            cursor.fetchall()
        except Exception as error:
            is_busy = str(getattr(error, "sqlite_errorname", "")).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
            if not is_busy or attempt == 99:
                raise
            await_only(asyncio.sleep(0.02))
        else:
            return


def _begin(connection: Any) -> None:
    """Take the write lock when a write transaction begins: upgrading a read lock later fails without waiting.
    Read-only connections begin no transaction, and each statement sees the newest commit."""
    if not connection.get_execution_options().get(READ_ONLY, False):
        connection.connection.dbapi_connection.has_begun = True
        connection.exec_driver_sql("BEGIN IMMEDIATE")
