"""A durable local queue of byte records, for data that must not be lost while its store is unavailable.

`append` returns once the record is on disk; concurrent appends share one fdatasync, made in a thread. Records are read
in order and kept until acknowledged, so after a crash some may be read again but none is lost. Acknowledged records
are kept for some minutes in case the store loses them. The file format is in `spool_segments.py`.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from storage.errors import Conflict, StoreUnavailable
from storage.serial_thread import SerialThread
from storage.spool_segments import (
    SegmentWriter,
    decode,
    framed_size,
    kept_segments,
    read_cursor,
    read_id,
    recover_segment,
    recover_segments,
    save_cursor,
    segment_path,
)

_log = logging.getLogger(__name__)

_NO_LIMIT = sys.maxsize
# A sync costs as much CPU time as a whole call. If the last batch was large, the next one waits a moment for more
# records. A single call never waits.
_LARGE_BATCH_RECORDS = 8
_GATHER_S = 0.001


class SpoolFull(StoreUnavailable):
    """The spool has reached its size limit; nothing was written."""


class Position(NamedTuple):
    """A position between two records: the segment, the byte offset in the segment, and the number of records before
    the position, counted from the position at opening (negative before that)."""

    segment: int
    offset: int
    num_before: int


class Spool:
    """The spool in one folder, which one process owns. One reader at a time.

    Raises Conflict if another process has the folder open, OSError if the folder cannot be used.
    """

    def __init__(
        self, directory: Path, max_bytes: int = 1 << 30, segment_bytes: int = 4 << 20, keep_s: float = 0.0
    ) -> None:
        """Open the folder. Acknowledged segments are kept for `keep_s`, but at most a quarter of `max_bytes`, which
        limits the unacknowledged records."""
        self.directory = directory
        self._keep_s = keep_s
        self._max_bytes = max_bytes
        self._segment_bytes = min(segment_bytes, max_bytes // 4)
        directory.mkdir(parents=True, exist_ok=True)
        self._lock_fd = _lock(directory / "lock")
        cursor = read_cursor(directory)
        self.id = read_id(directory)
        opened_s = time.monotonic()
        self._kept = {number: opened_s - age_s for number, age_s in kept_segments(directory, cursor).items()}
        self._ends, self._num_appended = recover_segments(directory, cursor)  # segment -> offset after its last frame
        self._acknowledged = Position(*cursor, 0)
        self._writer = SegmentWriter(directory, max([cursor[0], *self._ends]), self._segment_bytes)
        self._thread = SerialThread("spool")
        self._batch: _Batch | None = None
        self._gather_s = 0.0
        self._committer: asyncio.Task[None] | None = None
        self._queued_bytes = 0
        self._size_bytes = sum(self._ends.values())

    @property
    def num_pending(self) -> int:
        """Return the number of durable records that are not yet acknowledged."""
        return self._num_appended - self._acknowledged.num_before

    @property
    def has_room(self) -> bool:
        """Return True if new work that will append a record may start. Leaves enough space for the records of running
        work."""
        if self._writer.is_disk_full:
            self._thread.run_detached(self._writer.keep_spare)
            return False
        return self._size_bytes + self._queued_bytes <= self._max_bytes - self._segment_bytes

    async def append(self, record: bytes) -> None:
        """Return once `record` (1 byte to a quarter of a segment) is durable.

        Raises SpoolFull if the size limit is reached, and StoreUnavailable if the disk fails. After StoreUnavailable
        or a cancellation, `read_batch` may or may not return the record.
        """
        if not 0 < len(record) <= self._segment_bytes // 4:
            raise ValueError(f"a record must have 1 to {self._segment_bytes // 4} bytes (got {len(record)})")
        num_bytes = framed_size(record)
        if self._size_bytes + self._queued_bytes + num_bytes > self._max_bytes:
            raise SpoolFull(f"the spool is full ({self._max_bytes} bytes)")
        if self._batch is None:
            self._batch = _Batch()
        batch = self._batch
        batch.records.append(record)
        batch.num_bytes += num_bytes
        self._queued_bytes += num_bytes
        if self._committer is None:
            self._committer = asyncio.create_task(self._commit_batches())
        waiter = asyncio.get_running_loop().create_future()
        batch.waiters.append(waiter)
        await waiter

    async def read_batch(self, max_records: int) -> tuple[list[bytes], Position]:
        """Return up to `max_records` of the oldest unacknowledged records, and the position after them."""
        return await asyncio.to_thread(self._read, max_records, self._acknowledged, dict(self._ends))

    @property
    def acknowledged(self) -> Position:
        """Return the position before which all records are acknowledged."""
        return self._acknowledged

    async def acknowledge(self, position: Position) -> None:
        """Acknowledge all records before `position`, which was returned by `read_batch`."""
        self._acknowledged = position
        now_s = time.monotonic()
        acknowledged = [number for number in self._ends if number < position.segment]
        for number in acknowledged:
            self._size_bytes -= self._ends.pop(number)
            self._kept[number] = now_s
        done = self._drop_kept(now_s)
        await asyncio.to_thread(save_cursor, self.directory, position.segment, position.offset, acknowledged, done)

    def _drop_kept(self, now_s: float) -> list[int]:
        """Remove the segments that need not be kept any longer, and return them, oldest first."""
        num_too_many = len(self._kept) - max(1, self._max_bytes // 4 // self._segment_bytes)
        done = [
            number
            for index, number in enumerate(sorted(self._kept))
            if index < num_too_many or now_s - self._kept[number] >= self._keep_s
        ]
        for number in done:
            del self._kept[number]
        return done

    async def move_to(self, segment: int, offset: int) -> int:
        """Move the read position to a position between two records, or to the oldest kept record if that is later.

        Moving back makes acknowledged records readable again; moving forward acknowledges the records in between.
        Returns the number of records that became readable; negative if records were acknowledged.
        """
        before = self._acknowledged
        if (segment, offset) < (before.segment, before.offset):
            numbers = [number for number in sorted(self._kept) if number >= segment]
            kept_ends = await asyncio.to_thread(self._recover_ends, numbers)
            readable = [*kept_ends, before.segment]
            start = (segment, offset) if segment in readable else (min(readable), 0)
            self._ends = dict(sorted((kept_ends | self._ends).items()))
            self._size_bytes += sum(kept_ends.values())
            for number in numbers:
                self._kept.pop(number, None)
            self._acknowledged = Position(*start, before.num_before)
            records, _ = await asyncio.to_thread(self._read, _NO_LIMIT, self._acknowledged, self._until(before))
            self._acknowledged = Position(*start, before.num_before - len(records))
            # A restart must not skip these records again, even if it cannot compare its position with the store's.
            await asyncio.to_thread(save_cursor, self.directory, *start, [], [])
            return len(records)
        last = max([before.segment, *self._ends])
        if (segment, offset) > (last, self._ends.get(last, 0)):
            return 0  # not a position of this spool
        records, position = await asyncio.to_thread(
            self._read, _NO_LIMIT, before, self._until(Position(segment, offset, 0))
        )
        await self.acknowledge(Position(segment, offset, position.num_before))
        return -len(records)

    def _recover_ends(self, numbers: list[int]) -> dict[int, int]:
        """Return the end offsets of kept segments that still exist, by number."""
        ends = {number: recover_segment(self.directory, number) for number in numbers}
        return {number: end for number, end in ends.items() if end}

    def _until(self, position: Position) -> dict[int, int]:
        """Return the end offsets, by segment, of the records before a position."""
        ends = {number: end for number, end in self._ends.items() if number < position.segment}
        return ends | {position.segment: position.offset} if position.offset else ends

    async def close(self) -> None:
        """Wait for pending appends, then release the folder."""
        if self._committer is not None:
            await self._committer
        self._thread.close()
        self._writer.close()
        os.close(self._lock_fd)

    async def _commit_batches(self) -> None:
        """Write batches until there are no more. The next batch collects records while one is synced, and for another
        turn of the event loop, or `_GATHER_S` if the last batch was large."""
        while self._batch is not None:
            await asyncio.sleep(self._gather_s)
            batch, self._batch = self._batch, None
            self._gather_s = _GATHER_S if len(batch.records) >= _LARGE_BATCH_RECORDS else 0.0
            try:
                number, end = await self._thread.run(partial(self._writer.write, batch.records))
            except OSError as error:
                _log.error("spool write failed", extra={"error": error.strerror})
                batch.end(StoreUnavailable(f"spool: {error.strerror}"))
            except BaseException:
                batch.end(None)
                raise
            else:
                self._size_bytes += end - self._ends.get(number, 0)
                self._ends[number] = end
                self._num_appended += len(batch.records)
                batch.become_durable()
            self._queued_bytes -= batch.num_bytes
        self._committer = None

    def _read(self, max_records: int, at: Position, ends: dict[int, int]) -> tuple[list[bytes], Position]:
        records: list[bytes] = []
        for number in sorted(number for number in ends if number >= at.segment):
            if len(records) == max_records:
                break
            offset = at.offset if number == at.segment else 0
            with segment_path(self.directory, number).open("rb") as file:
                file.seek(offset)
                data = file.read(max(0, ends[number] - offset))
            found, num_bytes = decode(data, number, offset, max_records - len(records))
            records += found
            at = Position(number, offset + num_bytes, at.num_before + len(found))
        return records, at


class _Batch:
    """Records that share one sync, and the futures of their `append` calls."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.num_bytes = 0
        self.waiters: list[asyncio.Future[None]] = []

    def become_durable(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():  # not cancelled
                waiter.set_result(None)

    def end(self, error: Exception | None) -> None:
        """Set the error, or cancel the futures without one: the records may or may not be durable."""
        for waiter in self.waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.cancel()
            else:
                waiter.set_exception(error)


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise Conflict(f"the spool {path.parent} is open in another process") from None
    return fd
