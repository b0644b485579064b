"""Object store: large immutable bytes by key, in a folder (`file:///dir`) or an S3-compatible bucket
(`s3://bucket/prefix`).

An object appears completely or not at all. A download gets its name only after its checksum was verified. Blocking
work runs in this module's threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import unquote

from storage.errors import Damaged, StoreUnavailable
from storage.object_backend import CHUNK_BYTES, Backend, ObjectStat, sync_directory

T = TypeVar("T")

_KEY = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9._@-]*(/[A-Za-z0-9_@][A-Za-z0-9._@-]*)*")
_MAX_ATTEMPTS = 4
_FIRST_PAUSE_S = 0.2
RANGE_BYTES = 8 << 20  # bytes per request for a large object
PARALLEL_RANGES = 4

Progress = Callable[[int, int], None]
"""Called on the event loop with the number of bytes done and the size in bytes."""


class Objects:
    """One object store, shared by the whole process. Keys are `/`-separated names; an invalid key raises ValueError."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="objects")

    @classmethod
    def connect(cls, url: str) -> Objects:
        """Create a client for `file:///dir` or `s3://bucket/prefix` without connecting. boto3 reads the endpoint and
        the credentials from its usual sources.

        Raises ValueError for any other URL.
        """
        scheme, separator, rest = url.partition("://")
        if separator and scheme == "file" and rest.startswith("/"):
            from storage.objects_file import FileBackend

            return cls(FileBackend(Path(unquote(rest))))
        bucket, _, prefix = rest.partition("/")
        if separator and scheme == "s3" and bucket:
            from storage.objects_s3 import S3Backend

            return cls(S3Backend(bucket, prefix.strip("/")))
        raise ValueError("must be file:///absolute/folder or s3://bucket/prefix")

    async def put_file(self, key: str, path: Path, sha256: str | None = None) -> str:
        """Store a file and return its SHA-256. Raises Damaged, storing nothing, if the hash is not `sha256`."""
        return await self._in_thread(self._backend.put_file, _checked(key), path, sha256)

    async def put_bytes(self, key: str, data: bytes) -> str:
        """Store `data` and return its SHA-256."""
        sha256 = hashlib.sha256(data).hexdigest()
        await self._in_thread(self._backend.put_bytes, _checked(key), data, sha256)
        return sha256

    async def get_bytes(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from `start` to `end` (exclusive; None means the end of the object). Raises Missing."""
        _checked(key)
        return await self._in_thread(lambda: b"".join(self._backend.read(key, start, end)))

    async def stat(self, key: str) -> ObjectStat:
        """Return the size and checksum of an object. Raises Missing."""
        return await self._in_thread(self._backend.stat, _checked(key))

    async def list(self, prefix: str = "") -> list[str]:
        """Return the keys that start with `prefix`, sorted."""
        return await self._in_thread(self._backend.list, prefix)

    async def delete(self, key: str) -> None:
        """Delete an object. Does nothing if the object does not exist."""
        await self._in_thread(self._backend.delete, _checked(key))

    async def download(
        self,
        key: str,
        path: Path,
        *,
        sha256: str | None = None,
        size_bytes: int | None = None,
        resume: bool = True,
        on_progress: Progress | None = None,
    ) -> None:
        """Download an object to `path` and verify `sha256` (default: the checksum stored with the object) and
        `size_bytes`. Large objects are read in parallel ranges.

        The bytes are written to `path` + `.part` first. With `resume`, the partial file of an earlier attempt is
        continued. A lost connection is retried a few times. Of two concurrent downloads to one path, the second waits
        for the first. An existing file with the right checksum is left unchanged.

        Raises Missing; StoreUnavailable, which keeps the partial file; Damaged, which deletes it; OSError if `path`
        cannot be written.
        """
        _checked(key)
        loop = asyncio.get_running_loop()
        stop = threading.Event()

        def report(done_bytes: int, size_bytes: int) -> None:
            if on_progress is not None:
                loop.call_soon_threadsafe(on_progress, done_bytes, size_bytes)

        work = _Download(self._backend, key, path, sha256, size_bytes, resume, report, stop)
        future = loop.run_in_executor(self._threads, work.run)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            with contextlib.suppress(Exception):
                await future
            raise

    async def ping(self) -> None:
        """Check the connection. Raises StoreUnavailable if the store does not respond."""
        await self._in_thread(self._backend.ping)

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        self._backend.close()

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


class _Stopped(Exception):
    """The caller of the download was cancelled."""


@dataclass
class _Download:
    """One download, run by one thread."""

    backend: Backend
    key: str
    path: Path
    sha256: str | None
    size_bytes: int | None
    resume: bool
    report: Progress
    stop: threading.Event

    def run(self) -> None:
        stat = self.backend.stat(self.key)
        if self.size_bytes not in (None, stat.size_bytes):
            raise Damaged(f"{self.key} has {stat.size_bytes} bytes instead of {self.size_bytes}")
        expected = self.sha256 or stat.sha256
        part_path = self.path.with_name(self.path.name + ".part")
        with self._owned(part_path) as part:
            if expected and self.path.exists() and _sha256_of(self.path) == expected:
                part_path.unlink()
                self.report(stat.size_bytes, stat.size_bytes)
                return
            digest = self._read_partial(part, stat.size_bytes)
            self._fetch(part, digest, stat.size_bytes)
            if expected and digest.hexdigest() != expected:
                part_path.unlink()
                raise Damaged(f"{self.key}: the SHA-256 of the downloaded bytes is not {expected}")
            part.flush()
            os.fsync(part.fileno())
            part_path.rename(self.path)
            sync_directory(self.path.parent)

    @contextlib.contextmanager
    def _owned(self, path: Path) -> Iterator[IO[bytes]]:
        """Open `path` at its start for reading and appending, by one owner at a time on this machine."""
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with path.open("a+b") as file:
                if _is_locked_now(file) and _is_at(file, path):
                    file.seek(0)
                    yield file
                    return
            # Another download has the file open, or has just renamed or deleted it.
            if self.stop.wait(_FIRST_PAUSE_S):
                raise _Stopped

    def _read_partial(self, part: IO[bytes], size_bytes: int) -> hashlib._Hash:
        """Position `part` at the end of the bytes of an earlier attempt, and return their hash. Without `resume`, empty
        the file."""
        digest = hashlib.sha256()
        if not self.resume or os.fstat(part.fileno()).st_size > size_bytes:
            part.truncate(0)
        while chunk := part.read(CHUNK_BYTES):
            digest.update(chunk)
        return digest

    def _fetch(self, part: IO[bytes], digest: hashlib._Hash, size_bytes: int) -> None:
        num_failures = 0
        while (done_bytes := part.tell()) < size_bytes:
            try:
                self._fetch_once(part, digest, size_bytes)
                if part.tell() == done_bytes:
                    raise StoreUnavailable(f"{self.key}: the object ended before its size was reached")
            except StoreUnavailable:
                num_failures = 1 if part.tell() > done_bytes else num_failures + 1
                if num_failures == _MAX_ATTEMPTS:
                    part.flush()
                    raise
                if self.stop.wait(_FIRST_PAUSE_S * 2 ** (num_failures - 1)):
                    raise _Stopped from None

    def _fetch_once(self, part: IO[bytes], digest: hashlib._Hash, size_bytes: int) -> None:
        for chunk in self._read(part.tell(), size_bytes):
            if self.stop.is_set():
                raise _Stopped
            part.write(chunk)
            digest.update(chunk)
            self.report(part.tell(), size_bytes)

    def _read(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes in order. Of a large object, the next ranges are read in parallel, ahead of the caller."""
        if end - start < 2 * RANGE_BYTES:
            yield from self.backend.read(self.key, start, end)
            return
        starts = iter(range(start, end, RANGE_BYTES))
        with ThreadPoolExecutor(PARALLEL_RANGES, thread_name_prefix="range") as threads:
            try:
                ranges = deque(
                    threads.submit(self._read_range, first, end) for first in itertools.islice(starts, PARALLEL_RANGES)
                )
                while ranges:
                    data = ranges.popleft().result()
                    ranges.extend(threads.submit(self._read_range, first, end) for first in itertools.islice(starts, 1))
                    yield data
            finally:
                threads.shutdown(wait=False, cancel_futures=True)

    def _read_range(self, start: int, end: int) -> bytes:
        end = min(start + RANGE_BYTES, end)
        data = bytearray()
        for chunk in self.backend.read(self.key, start, end):
            data += chunk
            if self.stop.is_set():
                raise _Stopped
        if len(data) != end - start:
            raise StoreUnavailable(f"{self.key}: the range from {start} has {len(data)} bytes instead of {end - start}")
        return bytes(data)


def _is_locked_now(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(key: str) -> str:
    if len(key) > 900 or not _KEY.fullmatch(key):
        raise ValueError(f"an object key must be /-separated names of letters, digits and . _ - @ (got {key!r})")
    return key
