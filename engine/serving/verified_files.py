"""Files whose digest was checked by this process and that have not changed since.

A model that is loaded again need not be hashed again. A file counts as unchanged if its size, inode and times are those
that it had when it was hashed. A file that was modified just before is hashed each time, because file systems keep
coarse times.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from catalog.manifest import FileEntry, is_intact

PARALLEL_FILES = 4  # hashed at once; hashing releases the interpreter lock
SETTLED_S = 2.0  # age of a file's last change, after which its times identify its content

_Signature = tuple[int, int, int, int]


class VerifiedFiles:
    """Blocking: call it in a thread. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self._verified: dict[tuple[Path, str], _Signature] = {}

    def find_damaged(self, files: Sequence[tuple[Path, FileEntry]]) -> list[tuple[Path, FileEntry]]:
        """Return the files that are missing or do not have the size and digest of their entry."""
        unknown = [(path, entry) for path, entry in files if not self._is_known(path, entry)]
        with ThreadPoolExecutor(PARALLEL_FILES, thread_name_prefix="hash") as threads:
            results = list(threads.map(lambda file: self._verify(*file), unknown))
        return [file for file, is_good in zip(unknown, results, strict=True) if not is_good]

    def _is_known(self, path: Path, entry: FileEntry) -> bool:
        known = self._verified.get((path, entry.sha256))
        return known is not None and known == _signature(path)

    def _verify(self, path: Path, entry: FileEntry) -> bool:
        before = _signature(path)
        if before is None or not is_intact(path, entry):
            self._verified.pop((path, entry.sha256), None)
            return False
        newest_ns = max(before[2:])
        if time.time_ns() - newest_ns > SETTLED_S * 1e9 and before == _signature(path):
            self._verified[path, entry.sha256] = before
        return True


def _signature(path: Path) -> _Signature | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns
