"""Record the head of the audit chain in a file outside the database, once a minute if the chain has grown.

With the recorded heads, `hearth audit verify` detects entries that were removed from the database later. The protection
is stronger if the file is copied to another machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from storage.database import Database
from storage.errors import StoreUnavailable
from telemetry.clock import Clock
from tenants.audit import audit_heads
from tenants.audit import audit_log as audit
from tenants.audit.audit_log import NO_DIGEST, Head

log = logging.getLogger(__name__)

INTERVAL_S = 60.0


class AuditHeadRecorder:
    """Appends heads of the audit chain to `path`; does nothing if `path` is None."""

    def __init__(self, database: Database, path: Path | None, pepper: bytes, clock: Clock) -> None:
        self._database = database
        self._path = path
        self._key = audit_heads.key_from(pepper)
        self._clock = clock
        self._recorded = Head(0, NO_DIGEST)

    async def run(self) -> None:
        """Record heads until cancelled."""
        while self._path is not None:
            try:
                await self.record(self._path)
            except (StoreUnavailable, OSError) as error:
                log.warning("audit head not recorded", extra={"why": type(error).__name__})
            await asyncio.sleep(INTERVAL_S)

    async def record(self, path: Path) -> None:
        """Record the current head unless it has been recorded. Raises StoreUnavailable and OSError."""
        head = await audit.read_head(self._database)
        if head != self._recorded:
            await asyncio.to_thread(_append, path, audit_heads.note(head, self._clock.now(), self._key))
            self._recorded = head


def _append(path: Path, line: bytes) -> None:
    """Append a line and sync it to disk. A single write, because several processes may append to the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
