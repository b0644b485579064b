"""AuditVerifier: verifies the hash chain of the audit log, at most once a minute, because that reads the whole log."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from storage.database import Database
from telemetry.bounded_cache import BoundedCache
from telemetry.clock import Clock
from tenants.audit import audit_heads

CACHE_S = 60.0


class AuditVerification(Struct, frozen=True, kw_only=True):
    """The result of a verification of the whole chain. `detail` names the problems, or is empty."""

    ok: bool
    num_entries: int
    num_recorded_heads: int
    head: str
    detail: str
    verified_at: datetime


class AuditVerifier:
    """Verifies the chain against the heads in `heads_file`, whose proofs are under a key derived from `pepper`.
    Concurrent requests share one verification."""

    def __init__(self, database: Database, heads_file: Path | None, pepper: bytes, clock: Clock) -> None:
        self._database = database
        self._heads_file = heads_file
        self._key = audit_heads.key_from(pepper)
        self._clock = clock
        self._cache: BoundedCache[str, asyncio.Task[AuditVerification]] = BoundedCache(1, ttl_s=CACHE_S)

    async def get(self) -> AuditVerification:
        """Return the result of the last verification, or verify. Raises StoreUnavailable."""
        task = self._cache.get("chain")
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._verify())
            self._cache.put("chain", task)
        return await asyncio.shield(task)

    async def _verify(self) -> AuditVerification:
        path, problems = self._heads_file, []
        try:
            heads = await asyncio.to_thread(audit_heads.read_notes, path) if path is not None else []
        except (OSError, ValueError):
            heads, problems = [], ["the file of recorded heads (HEARTH_AUDIT_HEADS) cannot be read"]
        found = await audit_heads.verify(self._database, heads, self._key)
        problems += found.problems
        return AuditVerification(
            ok=not problems,
            num_entries=found.num_entries,
            num_recorded_heads=found.num_heads,
            head=found.head.digest.hex(),
            detail="; ".join(problems),
            verified_at=self._clock.now(),
        )
