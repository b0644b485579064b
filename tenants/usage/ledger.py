"""Usage, exactly once: durable in the local spool before a call's answer ends, in the ledger soon after.

The spool may hand an entry over twice and the ledger takes it once, since the request id is its key: so whatever dies
in between, and however often, there is one row per call. The ledger keeps, with the entries, how far it is in the
spool: when it knows less than it had confirmed, an older copy of it has taken over, and it is told again.
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
_GATHER_S = 0.05  # after the first of many calls, whose entries one transaction takes
_BETWEEN_S = 0.2  # from one transaction to the next while calls go on: each keeps them waiting, for the disk above all
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 1.0
_CHECK_S = 60.0  # with nothing to move, how often the ledger is asked whether it still knows
_NO_ROWS = "the ledger takes no rows at all: is the database migrated, may we write?"
_spooled = metrics.BufferedCounter(metrics.USAGE_SPOOLED)
# A number too big for its column is an OverflowError on SQLite, and a driver's error on Postgres.
_REFUSALS = (StoreError, SQLAlchemyError, OverflowError)


class UsageLedger:
    """The usage of one process. Owns its spool; `run` must run beside it, and `close` must be the last call."""

    def __init__(self, spool: Spool, database: Database) -> None:
        self._spool = spool
        self._database = database
        self._moving = asyncio.Lock()
        self._something_to_move = asyncio.Event()
        self._something_to_move.set()  # what a former process left
        self._is_closed = False
        self._confirmed: SpoolPosition | None = None
        self._is_compared = False
        metrics.USAGE_BACKLOG.set_function(lambda: spool.num_pending)

    @property
    def has_room(self) -> bool:
        """Whether new calls may be admitted: false while the spool or its disk is nearly full."""
        return self._spool.has_room

    async def record(self, entry: UsageEntry) -> None:
        """Returns once `entry` is durable. Raises StoreUnavailable when neither the spool nor the ledger takes it."""
        record = encode(entry)
        try:
            await self._spool.append(record)
        except StoreUnavailable:
            metrics.USAGE_WRITTEN.inc(await write(self._database, [entry]))
            return
        _spooled.add()
        self._something_to_move.set()

    async def run(self) -> None:
        """Moves entries from the spool to the ledger, while the database is away keeps trying; until `close`."""
        pause_s = _FIRST_PAUSE_S
        begun_s = -math.inf
        while not self._is_closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    await self._something_to_move.wait()
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
        """Move all there is now: what comes meanwhile is for the next time, or calls that go on would be moved one by
        one. Raises StoreUnavailable; what was not moved stays."""
        async with self._moving:
            while not self._is_closed:
                self._something_to_move.clear()
                try:
                    if not self._is_compared:
                        await self._compare()
                    is_all = await self._move_batch()
                except LedgerRolledBack:
                    self._is_compared = False
                except BaseException:
                    self._something_to_move.set()
                    self._is_compared = False  # who answers next may be another copy
                    raise
                else:
                    if is_all:
                        return

    async def check(self) -> None:
        """Tell the ledger again what it knew and does not know any more. Raises StoreUnavailable."""
        async with self._moving:
            if not self._is_closed:
                await self._compare()

    async def close(self, deadline_s: float = 5.0) -> None:
        """Move what can be moved before the deadline, keep the rest in the spool, and close that."""
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self.flush()
        async with self._moving:
            self._is_closed = True
        self._something_to_move.set()
        await self._spool.close()

    async def _compare(self) -> None:
        """Bring the spool to where the ledger is: back, if that is an older copy; forward, if a crash lost the news."""
        self._is_compared = False
        try:
            known = await find_position(self._database, self._spool.id)
        except SQLAlchemyError as error:
            raise StoreUnavailable(_NO_ROWS) from error
        num_back = await self._spool.move_to(*((known.segment, known.offset) if known is not None else (0, 0)))
        if num_back > 0:
            _log.warning("the ledger has forgotten entries and is told again", extra={"num_entries": num_back})
            self._something_to_move.set()
        self._confirmed, self._is_compared = known, True

    async def _move_batch(self) -> bool:
        """Returns whether that was all there was when it began."""
        records, position = await self._spool.read_batch(_BATCH_ENTRIES)
        if not records:
            return True
        entries = [entry for entry in await map_yielding(self._decoded, records) if entry is not None]
        place = SpoolPosition(self._spool.id, position.segment, position.offset)
        try:
            num_new = await write(self._database, entries, place, confirmed=self._confirmed)
        except StoreUnavailable:
            raise
        except _REFUSALS:
            num_new = await self._write_one_by_one(entries)
            await write(self._database, [], place, confirmed=self._confirmed)
        self._confirmed = place
        await self._spool.acknowledge(position)
        metrics.USAGE_WRITTEN.inc(num_new)
        return len(records) < _BATCH_ENTRIES

    async def _write_one_by_one(self, entries: list[UsageEntry]) -> int:
        """The database refuses a batch: if only for an entry that it will never take, keep that one aside."""
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
        """Keep for the operator, in `refused.hex` beside the spool, what cannot become a row: one record a line."""
        _log.error("a usage entry cannot be written and is kept aside", extra={"reason": reason})
        with (self._spool.directory / "refused.hex").open("a") as file:
            file.write(record.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
