"""The interface that each object store backend implements for `objects.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class ObjectStat:
    """`sha256` (hex) is the checksum stored with the object; None if the object was stored by another program."""

    size_bytes: int
    sha256: str | None


class Backend(Protocol):
    """An object store backend. Every method may block, and raises StoreUnavailable, Missing or Damaged."""

    def put_file(self, key: str, path: Path, sha256: str | None) -> str: ...
    def put_bytes(self, key: str, data: bytes, sha256: str) -> None: ...
    def read(self, key: str, start: int, end: int | None) -> Iterator[bytes]: ...
    def stat(self, key: str) -> ObjectStat: ...
    def list(self, prefix: str) -> list[str]: ...
    def delete(self, key: str) -> None: ...
    def ping(self) -> None: ...
    def close(self) -> None: ...


def sync_directory(path: Path) -> None:
    """Make the directory's entries durable with fsync."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
