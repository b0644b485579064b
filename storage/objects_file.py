"""Objects in a local folder: one file each, with the checksum in an extended attribute where supported."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from storage.errors import Damaged, Missing, StoreUnavailable
from storage.object_backend import CHUNK_BYTES, ObjectStat, sync_directory

_ATTRIBUTE = "user.hearth.sha256"
_INCOMING = ".incoming"


class FileBackend:
    """Files are written, synced and then renamed to their key."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put_file(self, key: str, path: Path, sha256: str | None) -> str:
        with path.open("rb") as source:
            return self._store(key, source, sha256)

    def put_bytes(self, key: str, data: bytes, sha256: str) -> None:
        self._store(key, io.BytesIO(data), sha256)

    def read(self, key: str, start: int, end: int | None) -> Iterator[bytes]:
        with _translated(key), (self._root / key).open("rb") as file:
            file.seek(start)
            left = None if end is None else end - start
            while left is None or left > 0:
                chunk = file.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
                if not chunk:
                    return
                left = None if left is None else left - len(chunk)
                yield chunk

    def stat(self, key: str) -> ObjectStat:
        path = self._root / key
        with _translated(key):
            if not path.is_file():
                raise Missing(key)
            sha256 = None
            with contextlib.suppress(OSError):
                sha256 = os.getxattr(path, _ATTRIBUTE).decode()
            return ObjectStat(path.stat().st_size, sha256)

    def list(self, prefix: str) -> list[str]:
        with _translated(prefix):
            files = (path for path in self._root.rglob("*") if path.is_file())
            keys = (path.relative_to(self._root).as_posix() for path in files)
            return sorted(key for key in keys if key.startswith(prefix) and not key.startswith(_INCOMING))

    def delete(self, key: str) -> None:
        with _translated(key):
            (self._root / key).unlink(missing_ok=True)

    def ping(self) -> None:
        with _translated(""):
            self._root.mkdir(parents=True, exist_ok=True)
            if not os.access(self._root, os.R_OK | os.W_OK | os.X_OK):
                raise StoreUnavailable(f"objects: {self._root} is not writable")

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    def _store(self, key: str, source: IO[bytes], expected: str | None) -> str:
        path = self._root / key
        with _translated(key):
            incoming = self._root / _INCOMING / secrets.token_hex(8)
            incoming.parent.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                sha256 = _copy(source, incoming)
                if expected is not None and sha256 != expected:
                    raise Damaged(f"{key}: the SHA-256 of the file is not {expected}")
                incoming.rename(path)
            except BaseException:
                incoming.unlink(missing_ok=True)
                raise
            sync_directory(path.parent)
        return sha256


def _copy(source: IO[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("xb") as file:
        while chunk := source.read(CHUNK_BYTES):
            file.write(chunk)
            digest.update(chunk)
        file.flush()
        with contextlib.suppress(OSError):  # without extended attributes the checksum is unknown
            os.setxattr(file.fileno(), _ATTRIBUTE, digest.hexdigest().encode())
        os.fsync(file.fileno())
    return digest.hexdigest()


@contextlib.contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise Missing(key) from error
    except OSError as error:
        raise StoreUnavailable(f"objects: {error.strerror}") from error
