"""The files of a spool: numbered segments of framed records, the spare one, and the cursor. No event loop here.

    id        the spool's id, a UUID
    segment   frames, then zeros up to the allocated size; the modification time is the time of acknowledgement
    frame     length:u32 checksum:u32 record       checksum = CRC-32 of (segment number, offset, length, record)

A crash can only cut off the end of the segment that was being written, because no segment is appended to after a
restart. Records after the last complete frame were never reported as durable. One spare segment is always allocated in
advance, so that a full disk rejects new work before records of running work are lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import time
import uuid
import zlib
from pathlib import Path

from storage.object_backend import sync_directory

_log = logging.getLogger(__name__)

_FRAME = struct.Struct("<II")
_LOCATION = struct.Struct("<QQI")
_CURSOR = struct.Struct("<QQI")
_SPARE_RETRY_S = 1.0
_ID_CHARACTERS = 36


def segment_path(directory: Path, number: int) -> Path:
    return directory / f"{number:016d}.log"


def framed_size(record: bytes) -> int:
    """Return the size of `record` in a segment, in bytes."""
    return _FRAME.size + len(record)


class SegmentWriter:
    """Appends batches of records durably. Used by one thread at a time, which may block on the disk.

    `is_disk_full` is True while no space can be allocated for the next segment; any thread may read it.
    """

    def __init__(self, directory: Path, last_number: int, segment_bytes: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._number = last_number
        self._end = 0
        self._fd = -1
        self._spare_tried_at = -_SPARE_RETRY_S
        self._has_spare = False
        self.is_disk_full = False
        self.keep_spare()

    def write(self, records: list[bytes]) -> tuple[int, int]:
        """Append and sync `records`; return their segment and the offset after them. Raises OSError.

        After an error, the records may or may not be found when the folder is next opened.
        """
        num_bytes = sum(map(framed_size, records))
        if self._fd < 0 or self._end + num_bytes > self._segment_bytes:
            self._begin_segment()
        frames = encode(records, self._number, self._end)
        try:
            _write_all(self._fd, frames, self._end)
            os.fdatasync(self._fd)
        except OSError:
            # After a failed sync the disk's content is unknown, so the segment is cut after its last durable frame.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
            self.close()
            raise
        self._end += num_bytes
        self.keep_spare()
        return self._number, self._end

    def keep_spare(self) -> None:
        """Preallocate the next segment. While the disk is full, retries at most once a second."""
        if self._has_spare or time.monotonic() - self._spare_tried_at < _SPARE_RETRY_S:
            return
        path = self._directory / "spare"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, self._segment_bytes)
            finally:
                os.close(fd)
        except OSError as error:
            _log.error("a spare spool segment could not be allocated", extra={"error": error.strerror})
            self._spare_tried_at = time.monotonic()
            self.is_disk_full = True
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        else:
            self._has_spare = True
            self.is_disk_full = False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _begin_segment(self) -> None:
        self.close()
        self._number += 1
        self._end = 0
        path = segment_path(self._directory, self._number)
        if self._has_spare:
            self._has_spare = False
            (self._directory / "spare").rename(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            sync_directory(self._directory)
        except OSError:
            self.close()
            raise


def recover_segments(directory: Path, cursor: tuple[int, int]) -> tuple[dict[int, int], int]:
    """Return the offset after the last complete frame of each segment from `cursor` on, and the number of records
    there. Segments before the cursor are ignored."""
    ends: dict[int, int] = {}
    num_records = 0
    for path in sorted(directory.glob("*.log")):
        number = int(path.stem)
        if number < cursor[0]:
            continue
        data = path.read_bytes()
        start = cursor[1] if number == cursor[0] else 0
        records, num_bytes = decode(data[start:], number, start, max_records=len(data))
        ends[number] = start + num_bytes
        num_records += len(records)
        torn = data[ends[number] :].rstrip(b"\0")
        if torn:
            _log.warning(
                "the last write to the spool is incomplete", extra={"segment": path.name, "size_bytes": len(torn)}
            )
    return ends, num_records


def recover_segment(directory: Path, number: int) -> int:
    """Return the offset after the last complete frame of a segment, or 0 if the segment does not exist."""
    try:
        data = segment_path(directory, number).read_bytes()
    except FileNotFoundError:
        return 0
    return decode(data, number, 0, max_records=len(data))[1]


def kept_segments(directory: Path, cursor: tuple[int, int]) -> dict[int, float]:
    """Return the seconds since the last record was acknowledged, for each segment before `cursor`."""
    now = time.time()
    paths = [path for path in sorted(directory.glob("*.log")) if int(path.stem) < cursor[0]]
    return {int(path.stem): max(0.0, now - path.stat().st_mtime) for path in paths}


def read_id(directory: Path) -> str:
    """Return the spool's permanent, globally unique id. Creates the id on first use."""
    path = directory / "id"
    try:
        found = path.read_text("ascii")
    except (FileNotFoundError, UnicodeDecodeError):
        found = ""
    if len(found) != _ID_CHARACTERS:
        found = str(uuid.uuid4())
        temporary = directory / "id.new"
        temporary.write_text(found)
        temporary.rename(path)
    return found


def read_cursor(directory: Path) -> tuple[int, int]:
    """Return the segment and offset up to which all records are acknowledged; (0, 0) if the file is missing or
    damaged."""
    try:
        segment, offset, checksum = _CURSOR.unpack((directory / "cursor").read_bytes())
    except (FileNotFoundError, struct.error):
        return 0, 0
    if checksum != zlib.crc32(_LOCATION.pack(segment, offset, 0)):
        return 0, 0
    return segment, offset


def save_cursor(directory: Path, segment: int, offset: int, acknowledged: list[int], done: list[int]) -> None:
    """Store the cursor, set the acknowledgement time of the segments `acknowledged`, and delete the segments `done`.

    Not synced: if a power failure restores an older cursor, records are read again.
    """
    for number in acknowledged:
        with contextlib.suppress(FileNotFoundError):
            os.utime(segment_path(directory, number))
    temporary = directory / "cursor.new"
    temporary.write_bytes(_CURSOR.pack(segment, offset, zlib.crc32(_LOCATION.pack(segment, offset, 0))))
    temporary.rename(directory / "cursor")
    for number in done:
        segment_path(directory, number).unlink(missing_ok=True)


def encode(records: list[bytes], number: int, offset: int) -> bytes:
    """Return the frames of `records` for `offset` of segment `number`."""
    parts: list[bytes] = []
    for record in records:
        parts += (_FRAME.pack(len(record), _checksum(number, offset, record)), record)
        offset += framed_size(record)
    return b"".join(parts)


def decode(data: bytes, number: int, offset: int, max_records: int) -> tuple[list[bytes], int]:
    """Decode the complete frames at the start of `data`, which is at `offset` of segment `number`.

    Returns the records and the size of their frames.
    """
    records: list[bytes] = []
    at = 0
    while len(records) < max_records and at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        record = data[at + _FRAME.size : at + _FRAME.size + length]
        if length == 0 or len(record) < length or _checksum(number, offset + at, record) != checksum:
            break
        records.append(record)
        at += framed_size(record)
    return records, at


def _checksum(number: int, offset: int, record: bytes) -> int:
    """Return a checksum that covers the segment number and offset, so that bytes from elsewhere never pass as a
    record."""
    return zlib.crc32(record, zlib.crc32(_LOCATION.pack(number, offset, len(record))))


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
