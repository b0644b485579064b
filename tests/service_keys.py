"""Service keys for tests: one key ring per test process, with a key for every gateway and node that tests name."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from service_identity import key_ring
from service_identity.service_identity import ServiceIdentity

# All keys are created with the ring, because a running process reads a later key only after a second.
NAMES = ("gateway/gateway", *(f"node/{name}" for name in ("n1", "n2", "n3", "near", "far", "liar", "quick")))


class ServiceKeys:
    """A key ring and private keys in `folder`."""

    def __init__(self, folder: Path, names: tuple[str, ...] = NAMES) -> None:
        self.ring = folder / "ring.json"
        self._keys = folder / "keys"
        for name in names:
            self.add(name)

    def add(self, subject: str, pop: str = "") -> str:
        """Make a key for `subject`, bound to `pop` unless empty, and return the key's id."""
        private = key_ring.generate()
        key_ring.write_private_key(self.folder(subject, pop), private)
        row = key_ring.public_key(key_ring.public_half(private), subject, start_s=time.time(), life_days=1, pop=pop)
        self.change(lambda ring: key_ring.with_key(ring, row))
        return row.kid

    def change(self, change: Callable[[key_ring.Ring], key_ring.Ring]) -> None:
        key_ring.change_ring(self.ring, change, now_s=time.time())

    def folder(self, subject: str, pop: str = "") -> Path:
        """The folder of the private keys of `subject`."""
        folder = key_ring.folder_of(self._keys, subject)
        return folder.with_name(f"{folder.name}@{pop}") if pop else folder

    def environ(self, subject: str, pop: str = "") -> dict[str, str]:
        """Return the settings with which a process runs as `subject`. Creates a missing key."""
        if not self.folder(subject, pop).exists():
            self.add(subject, pop)
        return {"HEARTH_SERVICE_RING": str(self.ring), "HEARTH_SERVICE_KEYS": str(self.folder(subject, pop))}

    def identity(self, subject: str, pop: str = "") -> ServiceIdentity:
        """Return the identity of `subject`. Creates a missing key."""
        keys = self.environ(subject, pop)["HEARTH_SERVICE_KEYS"]
        return ServiceIdentity(self.ring, Path(keys), subject.split("/")[0])  # type: ignore[arg-type]


@functools.cache
def service_keys() -> ServiceKeys:
    """Return the keys that all tests of this process share. Their folder is removed when the process exits."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-keys-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return ServiceKeys(folder)
