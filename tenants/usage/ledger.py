"""The usage ledger: entries are durable in a local spool before a response ends, and in the database soon after.

The spool may deliver an entry twice; the database stores it once, because the request id is its key. The database also
stores its position in the spool with the entries. If that position is before the one it confirmed, an older copy of
the database has taken over, and the entries since are written again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time

from sqlalchemy.exc import SQLAlchemyError

from storage.database import Database
from storage.errors import StoreError, StoreUnavailable
from storage.spool import Spool
from storage.waiters import wait_for_event
from telemetry import metrics
from tenants.usage.usage_entries import (
    LedgerRolledBack,
    SpoolPosition,
    UsageEntry,
    accepts_rows,
    decode,
    encode,
    find_position,
    map_yielding,
    write,
)

_log = logging.getLogger(__name__)

_BATCH_ENTRIES = 500
_GATHER_S = 0.05  # seconds between the first entry and the transaction, which collects further entries
_BETWEEN_S = 0.2  # seconds between two transactions under load: each transaction delays running calls
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 1.0
_CHECK_S = 60.0  # between checks of the database's position while there is nothing to move
_NO_ROWS = "database: usage entries are rejected; check that it is migrated and writable"
_spooled = metrics.BufferedCounter(metrics.USAGE_SPOOLED)
# A number that is too large for its column raises OverflowError on SQLite and a driver error on Postgres.
_REFUSALS = (StoreError, SQLAlchemyError, OverflowError)


class UsageLedger:
    """Usage of one process. Owns its spool; `run` must run in the background, and `close` must be the last call."""

    def __init__(self, spool: Spool, database: Database) -> None:
        self._spool = spool
        self._database = database
        self._moving = asyncio.Lock()
        self._something_to_move = asyncio.Event()
        self._something_to_move.set()  # a previous process may have left entries
        self._is_closed = False
        self._confirmed: SpoolPosition | None = None
        self._is_compared = False
        metrics.USAGE_BACKLOG.set_function(lambda: spool.num_pending)

    @property
    def has_room(self) -> bool:
        """Return True if new calls may be admitted: False while the spool or its disk is nearly full."""
        return self._spool.has_room

    async def record(self, entry: UsageEntry) -> None:
        """Return once `entry` is durable. Raises StoreUnavailable if neither the spool nor the database accepts it."""
        record = encode(entry)
        try:
            await self._spool.append(record)
        except StoreUnavailable:
            metrics.USAGE_WRITTEN.inc(await write(self._database, [entry]))
            return
        _spooled.add()
        self._something_to_move.set()

    async def run(self) -> None:
        """Move entries from the spool to the database until `close`; retry while the database is unavailable."""
        pause_s = _FIRST_PAUSE_S
        begun_s = -math.inf
        while not self._is_closed:
            await wait_for_event(self._something_to_move, _CHECK_S)
            await asyncio.sleep(max(_GATHER_S, begun_s + _BETWEEN_S - time.monotonic()))
            begun_s = time.monotonic()
            try:
                if self._something_to_move.is_set():
                    await self.flush()
                else:
                    await self.check()
            except StoreUnavailable as error:
                _log.warning(
                    "usage stays in the spool", extra={"reason": str(error), "backlog": self._spool.num_pending}
                )
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _MAX_PAUSE_S)
            else:
                pause_s = _FIRST_PAUSE_S

    async def flush(self) -> None:
        """Move all entries that are in the spool now. Later entries wait for the next flush, so that entries are moved
        in batches. Raises StoreUnavailable; entries that were not moved stay in the spool."""
        async with self._moving:
            while not self._is_closed and not await self._compare_and_move():
                pass

    async def _compare_and_move(self) -> bool:
        """Compare positions if necessary, then move one batch. Returns True if nothing is left to move."""
        self._something_to_move.clear()
        try:
            if not self._is_compared:
                await self._compare()
            return await self._move_batch()
        except LedgerRolledBack:
            self._is_compared = False
            return False
        except BaseException:
            self._something_to_move.set()
            self._is_compared = False  # the next database connection may reach an older copy
            raise

    async def check(self) -> None:
        """Write entries again that the database has lost. Raises StoreUnavailable."""
        async with self._moving:
            if not self._is_closed:
                await self._compare()

    async def close(self, deadline_s: float = 5.0) -> None:
        """Move what can be moved before the deadline, leave the rest in the spool, and close the spool."""
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self.flush()
        async with self._moving:
            self._is_closed = True
        self._something_to_move.set()
        await self._spool.close()

    async def _compare(self) -> None:
        """Set the spool's read position to the database's: back if the database is an older copy, forward after a
        crash."""
        self._is_compared = False
        try:
            known = await find_position(self._database, self._spool.id)
        except SQLAlchemyError as error:
            raise StoreUnavailable(_NO_ROWS) from error
        num_back = await self._spool.move_to(*((known.segment, known.offset) if known is not None else (0, 0)))
        if num_back > 0:
            _log.warning("usage entries that the database has lost are written again", extra={"num_entries": num_back})
            self._something_to_move.set()
        self._confirmed, self._is_compared = known, True

    async def _move_batch(self) -> bool:
        """Move one batch. Returns True if it contained everything that was in the spool."""
        records, position = await self._spool.read_batch(_BATCH_ENTRIES)
        if not records:
            return True
        entries = [entry for entry in await map_yielding(self._decoded, records) if entry is not None]
        position_in_ledger = SpoolPosition(self._spool.id, position.segment, position.offset)
        try:
            num_new = await write(self._database, entries, position_in_ledger, confirmed=self._confirmed)
        except StoreUnavailable:
            raise
        except _REFUSALS:
            num_new = await self._write_one_by_one(entries)
            await write(self._database, [], position_in_ledger, confirmed=self._confirmed)
        self._confirmed = position_in_ledger
        await self._spool.acknowledge(position)
        metrics.USAGE_WRITTEN.inc(num_new)
        return len(records) < _BATCH_ENTRIES

    async def _write_one_by_one(self, entries: list[UsageEntry]) -> int:
        """Write entries one by one after the database rejected a batch, and set aside entries that it never accepts."""
        if not await accepts_rows(self._database):
            raise StoreUnavailable(_NO_ROWS)
        num_new = 0
        for entry in entries:
            try:
                num_new += await write(self._database, [entry])
            except StoreUnavailable:
                raise
            except _REFUSALS as error:
                self._set_aside(encode(entry), type(error).__name__)
        return num_new

    def _decoded(self, record: bytes) -> UsageEntry | None:
        try:
            return decode(record)
        except ValueError as error:
            self._set_aside(record, type(error).__name__)
            return None

    def _set_aside(self, record: bytes, reason: str) -> None:
        """Append a record that cannot become a row to `refused.hex` beside the spool, one record per line."""
        _log.error("a usage entry was rejected and set aside in refused.hex", extra={"reason": reason})
        with (self._spool.directory / "refused.hex").open("a") as file:
            file.write(record.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
