"""DIR, the folder in which `hearth up` keeps one platform: where everything lies in it, and its two private files.

`secrets.json` is made once and holds the platform's two keys and its first account and token. `dev.json` exists
while the platform is up and says how to reach it. Both have mode 600. Knows nothing of processes.
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
from typing import Annotated, Any
from urllib.parse import quote

import typer

DEFAULT_DATA = Path(".hearth")
DataOption = Annotated[
    Path | None, typer.Option("--data", help="Folder of a platform that `hearth up` started; .hearth unless given.")
]
# A Unix socket's path has 108 bytes with its closing zero; the longest name we put into a run folder is under 40.
_MAX_RUN_DIR_BYTES = 107 - 40
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/_.-]+")
URL_FIELDS = {"database_url": "DATABASE_URL", "redis_url": "REDIS_URL", "objects_url": "OBJECTS_URL"}
KEYS = ("HEARTH_TOKEN_PEPPER", "HEARTH_CACHE_SECRET")


class DataDirInUse(Exception):
    """Another `hearth up` holds this folder. `pid` and `url` are what it wrote about itself, as far as it got."""

    def __init__(self, pid: int | None, url: str | None) -> None:
        super().__init__("in use")
        self.pid = pid
        self.url = url


@dataclass(frozen=True)
class Secrets:
    """The two keys by environment variable, and the first account (empty strings until it exists)."""

    keys: Mapping[str, str]
    account_id: str = ""
    api_token: str = ""


class DataDir:
    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.logs = self.path / "logs"
        self._secrets = self.path / "secrets.json"
        self._dev = self.path / "dev.json"
        self._lock = self.path / "lock"

    def create(self) -> None:
        """Make the folder, readable by its owner only, and what has to be in it. Raises OSError."""
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.path))
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("logs", "objects", "spool", "cache"):
            (self.path / name).mkdir(mode=0o700, exist_ok=True)

    @property
    def is_platform(self) -> bool:
        """Whether a platform was ever started here."""
        return self._secrets.exists()

    def environ(self) -> dict[str, str]:
        """What every process of an embedded platform reads, as far as it is no secret and known before it runs."""
        return {
            "DATABASE_URL": f"sqlite://{quote(str(self.path / 'hearth.db'))}",
            "OBJECTS_URL": f"file://{quote(str(self.path / 'objects'))}",
            "HEARTH_SPOOL_DIR": str(self.path / "spool"),
            "HEARTH_AUDIT_HEADS": str(self.path / "audit-heads.jsonl"),
            "HEARTH_SERVICE_RING": str(self.service_ring),
        }

    @property
    def service_ring(self) -> Path:
        """Where the public keys of its gateway and nodes are; their private ones lie beside it."""
        return self.path / "service" / "ring.json"

    def run_dir(self) -> Path:
        """A folder for sockets, which nobody else can enter: in DIR, or in the temporary folder where DIR's path is too
        long for a socket or would need quoting in a URL. Raises OSError."""
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
        """Raises FileNotFoundError when no platform was ever started here, ValueError when the file is damaged."""
        try:
            stored = json.loads(self._secrets.read_text())
            keys = {name: str(stored[name]) for name in KEYS}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self._secrets} is damaged: {type(error).__name__}: {error}") from None
        return Secrets(keys, str(stored.get("account_id", "")), str(stored.get("api_token", "")))

    def ensure_secrets(self) -> Secrets:
        """The keys of this platform, made at its first start and never again."""
        with contextlib.suppress(FileNotFoundError):
            return self.read_secrets()
        made = Secrets({name: secrets.token_hex(32) for name in KEYS})
        self.write_secrets(made)
        return made

    def write_secrets(self, value: Secrets) -> None:
        write_private(self._secrets, {**value.keys, "account_id": value.account_id, "api_token": value.api_token})

    def read_dev(self) -> dict[str, Any] | None:
        """What the running platform says of itself; None when there is none, or when the file cannot be read."""
        try:
            found = json.loads(self._dev.read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def write_dev(self, value: Mapping[str, Any]) -> None:
        write_private(self._dev, value)

    def remove_dev(self) -> None:
        self._dev.unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self, url: str) -> Iterator[None]:
        """Hold this folder as the only `hearth up` in it. Raises DataDirInUse.

        The lock is the kernel's, so it ends with the process however that ends; what a killed one left is swept.
        """
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._holder() from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "url": url}).encode(), 0)
            self.remove_dev()
            try:
                yield
            finally:
                self.remove_dev()
        finally:
            os.close(descriptor)

    def _holder(self) -> DataDirInUse:
        try:
            holder = json.loads(self._lock.read_text())
            return DataDirInUse(int(holder["pid"]), str(holder["url"]))
        except (OSError, ValueError, KeyError, TypeError):
            return DataDirInUse(None, None)


def write_private(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON with mode 600, whole or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mkstemp makes it 600
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
