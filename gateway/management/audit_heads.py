"""Notes the head of the audit chain in a file of this process, so that what is taken away from the database later is
missed. Once a minute, where the chain has grown; and whoever copies the file elsewhere makes the note stronger."""

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


class AuditHeads:
    """`path` None notes nothing."""

    def __init__(self, database: Database, path: Path | None, pepper: bytes, clock: Clock) -> None:
        self._database = database
        self._path = path
        self._key = audit_heads.key_from(pepper)
        self._clock = clock
        self._noted = Head(0, NO_DIGEST)

    async def run(self) -> None:
        """Note until cancelled."""
        while self._path is not None:
            try:
                await self.note(self._path)
            except (StoreUnavailable, OSError) as error:
                log.warning("the head of the audit could not be noted", extra={"why": type(error).__name__})
            await asyncio.sleep(INTERVAL_S)

    async def note(self, path: Path) -> None:
        """Note the head now, unless it is the one noted last. Raises StoreUnavailable, OSError."""
        head = await audit.read_head(self._database)
        if head != self._noted:
            await asyncio.to_thread(_append, path, audit_heads.note(head, self._clock.now(), self._key))
            self._noted = head


def _append(path: Path, line: bytes) -> None:
    """One write, so that several processes may note into one file; on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(number, line)
        os.fsync(number)
    finally:
        os.close(number)
