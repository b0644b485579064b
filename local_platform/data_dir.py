"""The data directory: one local platform's files, and where each of them is.

`secrets.json` is written once and holds the platform's keys, its first account and that account's API token.
`dev.json` exists while the platform runs and says how to reach it. Both files have mode 0600.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

DEFAULT_DATA = Path(".hearth")
# A Unix socket path has at most 107 bytes and a closing zero; socket names in the run folder are shorter than 40.
_MAX_RUN_DIR_BYTES = 107 - 40
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/_.-]+")
URL_FIELDS = {"database_url": "DATABASE_URL", "redis_url": "REDIS_URL", "objects_url": "OBJECTS_URL"}
KEYS = ("HEARTH_TOKEN_PEPPER", "HEARTH_CACHE_SECRET")


class DataDirInUse(Exception):
    """Another `hearth up` has locked this directory. `pid` and `url` are None if it has not written them yet."""

    def __init__(self, pid: int | None, url: str | None) -> None:
        super().__init__("in use")
        self.pid = pid
        self.url = url


@dataclass(frozen=True)
class Secrets:
    """The platform's keys by environment variable, and its first account; empty strings until that account exists."""

    keys: Mapping[str, str]
    account_id: str = ""
    api_token: str = ""


class DataDir:
    """One platform's data directory. Constructing it touches no file."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.logs = self.path / "logs"
        self._secrets = self.path / "secrets.json"
        self._dev = self.path / "dev.json"
        self._lock = self.path / "lock"

    def create(self) -> None:
        """Create the directory with mode 0700, and its subdirectories. Raises OSError."""
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.path))
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("logs", "objects", "spool", "cache"):
            (self.path / name).mkdir(mode=0o700, exist_ok=True)

    @property
    def is_platform(self) -> bool:
        """True if a platform was ever started in this directory."""
        return self._secrets.exists()

    def environ(self) -> dict[str, str]:
        """Return the environment variables that all processes share, without secrets and the Redis URL."""
        return {
            "DATABASE_URL": f"sqlite://{quote(str(self.path / 'hearth.db'))}",
            "OBJECTS_URL": f"file://{quote(str(self.path / 'objects'))}",
            "HEARTH_SPOOL_DIR": str(self.path / "spool"),
            "HEARTH_AUDIT_HEADS": str(self.path / "audit-heads.jsonl"),
            "HEARTH_SERVICE_RING": str(self.service_ring),
        }

    @property
    def service_ring(self) -> Path:
        """The file with the public service keys. Private service keys are in a folder beside this file."""
        return self.path / "service" / "ring.json"

    def run_dir(self) -> Path:
        """Create and return a private folder for Unix sockets.

        The folder is in the system's temporary directory if this directory's path is too long for a socket path or
        would need quoting in a URL. Raises OSError if the folder is not private to this user.
        """
        folder = self.path / "run"
        if len(os.fsencode(folder)) > _MAX_RUN_DIR_BYTES or not _PLAIN_PATH.fullmatch(str(folder)):
            name = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
            folder = Path(tempfile.gettempdir()) / f"hearth-{os.getuid()}-{name}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not a private folder of this user")
        return folder

    def read_secrets(self) -> Secrets:
        """Return the stored secrets.

        Raises FileNotFoundError if no platform was ever started here, and ValueError if the file is damaged.
        """
        try:
            stored = json.loads(self._secrets.read_text())
            keys = {name: str(stored[name]) for name in KEYS}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self._secrets} is damaged: {type(error).__name__}: {error}") from None
        return Secrets(keys, str(stored.get("account_id", "")), str(stored.get("api_token", "")))

    def ensure_secrets(self) -> Secrets:
        """Return the stored secrets; generate and store them on the first call."""
        with contextlib.suppress(FileNotFoundError):
            return self.read_secrets()
        generated = Secrets({name: secrets.token_hex(32) for name in KEYS})
        self.write_secrets(generated)
        return generated

    def write_secrets(self, value: Secrets) -> None:
        """Replace `secrets.json`. Raises OSError."""
        write_private(self._secrets, {**value.keys, "account_id": value.account_id, "api_token": value.api_token})

    def read_dev(self) -> dict[str, Any] | None:
        """Return the content of `dev.json`, or None if no platform runs here or the file is unreadable."""
        try:
            found = json.loads(self._dev.read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def write_dev(self, value: Mapping[str, Any]) -> None:
        """Replace `dev.json`. Raises OSError."""
        write_private(self._dev, value)

    def remove_dev(self) -> None:
        """Delete `dev.json` if it exists."""
        self._dev.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self, url: str) -> Iterator[None]:
        """Lock this directory for one `hearth up`. Raises DataDirInUse.

        The kernel releases the lock when the process ends, also if it is killed. A `dev.json` left behind by a killed
        process is deleted.
        """
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._in_use() from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "url": url}).encode(), 0)
            self.remove_dev()
            try:
                yield
            finally:
                self.remove_dev()
        finally:
            os.close(descriptor)

    def _in_use(self) -> DataDirInUse:
        try:
            owner = json.loads(self._lock.read_text())
            return DataDirInUse(int(owner["pid"]), str(owner["url"]))
        except (OSError, ValueError, KeyError, TypeError):
            return DataDirInUse(None, None)


def write_private(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON to a file with mode 0600, atomically. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mkstemp sets mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
