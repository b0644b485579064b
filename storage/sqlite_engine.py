"""How SQLite is opened and how its transactions begin: WAL mode, every commit on the disk, writers in turn."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

import aiosqlite
from sqlalchemy import event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from storage.database_url import DatabaseUrl

READ_ONLY = "hearth_read_only"
"""The execution option of a connection that will only read."""


def sqlite_engine(
    url: DatabaseUrl, timeout_s: float, options: dict[str, Any]
) -> tuple[AsyncEngine, weakref.WeakSet[threading.Thread]]:
    """An engine for one file, and the threads of its connections: each has one, and a connection that was cancelled
    or could not be opened leaves its thread to finish alone. `timeout_s` bounds the wait for another's lock."""
    threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    async def connect() -> aiosqlite.Connection:
        # isolation_level None: the driver begins nothing by itself, _begin does.
        opening = aiosqlite.connect(
            str(url.path), isolation_level=None, timeout=timeout_s, check_same_thread=False, cached_statements=256
        )
        opening._thread.daemon = True
        threads.add(opening._thread)
        return await opening

    engine = create_async_engine(url.for_sqlalchemy, async_creator=connect, **options)
    event.listen(engine.sync_engine, "connect", _prepare)
    event.listen(engine.sync_engine, "begin", _begin)
    return engine, threads


def _prepare(connection: DBAPIConnection, _record: object) -> None:
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
            is_busy = str(getattr(error, "sqlite_errorname", "")).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
            if not is_busy or attempt == 99:
                raise
            await_only(asyncio.sleep(0.02))
        else:
            return


def _begin(connection: Any) -> None:
    """A writer takes the write lock at once: upgrading a read to a write later fails without waiting its turn."""
    is_read_only = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if is_read_only else "BEGIN IMMEDIATE")
