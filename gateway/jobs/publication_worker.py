"""Runs publications: leases one at a time, and publishes it in a child process (`python -m publishing`).

The child fetches, checks and stores the files, so hashing and parsing delay no calls. The worker stores the progress,
which renews the lease, and ends the child when the publication is cancelled or the gateway stops. After the end of a
gateway, another one continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from catalog import publications
from catalog.publications import MAX_LOSSES, Publication
from catalog.pull import default_staging
from gateway.services import Services, keep_running
from storage.columns import uuid7
from storage.errors import StoreUnavailable
from telemetry.child_process import describe_exit

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0
RENEW_INTERVAL_S = 0.5
LEASE_S = 30.0
MAX_LINE_BYTES = 1 << 20
MAX_LOG_CHARACTERS = 2000
_END_TIMEOUT_S = 5.0

_decode = msgspec.json.Decoder(dict[str, Any]).decode


@contextlib.asynccontextmanager
async def publication_worker(services: Services) -> AsyncIterator[None]:
    """Run publications while the block runs; does nothing without an object store. At the end, an unfinished
    publication goes back to the queue."""
    if not services.settings.objects_url:
        yield
        return
    worker = PublicationWorker(services)
    job = asyncio.create_task(keep_running(worker.run), name=worker.run.__qualname__)
    try:
        yield
    finally:
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)


class PublicationWorker:
    """The worker of one gateway."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._owner = uuid7()

    async def run(self) -> None:
        """Run publications until cancelled."""
        while True:
            try:
                found = await self._take()
                if found is not None:
                    await self._publish(found)
                    continue
            except StoreUnavailable:
                log.warning("publications were not read: the database is unavailable")
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _take(self) -> Publication | None:
        if self._services.admission.is_draining:
            return None
        return await publications.take(self._services.database, self._owner, self._services.clock.now(), LEASE_S)

    async def _publish(self, found: Publication) -> None:
        """Run one publication to its end, or until it is cancelled or its lease is lost. Raises StoreUnavailable."""
        publication_id = found.publication_id
        if found.is_cancelled:
            await self._finish(publication_id, "cancelled")
            return
        if found.num_losses > MAX_LOSSES:
            await self._finish(publication_id, "failed", detail="the gateways that worked on it have stopped")
            return
        child = await self._start(found)
        try:
            await self._follow(found, child)
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _start(self, found: Publication) -> asyncio.subprocess.Process:
        settings = self._services.settings
        job = {
            "source": found.source,
            "location": found.location,
            "hub_revision": found.hub_revision,
            "file": found.file,
            "name": found.name,
            "prices": found.prices,
            "created_by": found.created_by,
            "staging": settings.publication_dir or str(default_staging()),
            "database_url": settings.database_url,
            "objects_url": settings.objects_url,
        }
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "publishing",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            limit=MAX_LINE_BYTES,
            env=os.environ | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        )
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(job) + b"\n")
        return child

    async def _follow(self, found: Publication, child: asyncio.subprocess.Process) -> None:
        """Store the progress and the end of a child. Raises StoreUnavailable."""
        publication_id, progress = found.publication_id, _Progress()
        reading = asyncio.create_task(progress.read(child))
        try:
            while not reading.done():
                await asyncio.wait([reading], timeout=RENEW_INTERVAL_S)
                if not reading.done() and not await self._renew(publication_id, progress):
                    await self._cancel(publication_id, child)
                    return
        except asyncio.CancelledError:  # the gateway stops
            with contextlib.suppress(StoreUnavailable):
                now = self._services.clock.now()
                await publications.release(self._services.database, self._owner, publication_id, now)
            raise
        finally:
            reading.cancel()
        if progress.revision is not None:
            size = progress.total_bytes
            await self._finish(publication_id, "done", detail="published", revision=progress.revision, total_bytes=size)
            await self._services.registry.refresh()
            log.info("model published", extra={"model": found.name, "revision": progress.revision})
        else:
            why = progress.error or f"the publishing process {describe_exit(await child.wait())}"
            await self._finish(publication_id, "failed", detail=why)
            log.warning("model was not published", extra={"model": found.name, "why": why, "log": progress.log_text})

    async def _renew(self, publication_id: str, progress: _Progress) -> bool:
        """Renew the lease with the progress; return False if the publication is no longer this worker's. An unavailable
        database ends nothing until the lease has expired."""
        services = self._services
        with contextlib.suppress(StoreUnavailable):
            return await publications.renew(
                services.database,
                self._owner,
                publication_id,
                services.clock.now(),
                LEASE_S,
                done_bytes=progress.done_bytes,
                total_bytes=progress.total_bytes,
                detail=progress.detail,
            )
        return True

    async def _cancel(self, publication_id: str, child: asyncio.subprocess.Process) -> None:
        """End the child of a publication that was cancelled or that another gateway has taken."""
        found = await publications.find(self._services.database, publication_id)
        if found is not None and found.is_cancelled:
            assert child.stdin is not None
            child.stdin.write(b"cancel\n")
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(_END_TIMEOUT_S):
                    await child.stdin.drain()
                    await child.wait()
            await self._finish(publication_id, "cancelled")

    async def _finish(self, publication_id: str, state: publications.State, **values: Any) -> None:
        database, now = self._services.database, self._services.clock.now()
        await publications.finish(database, self._owner, publication_id, state, now, **values)


class _Progress:
    """The latest report of the child."""

    def __init__(self) -> None:
        self.detail = "starting"
        self.done_bytes = self.total_bytes = 0
        self.revision: str | None = None
        self.error = ""
        self.log_text = ""  # the end of the child's standard error

    async def read(self, child: asyncio.subprocess.Process) -> None:
        """Read the child's output until it ends."""
        await asyncio.gather(self._read_lines(child), self._read_log(child))

    async def _read_log(self, child: asyncio.subprocess.Process) -> None:
        assert child.stderr is not None
        while piece := await child.stderr.read(MAX_LOG_CHARACTERS):
            self.log_text = (self.log_text + piece.decode("utf-8", "replace"))[-MAX_LOG_CHARACTERS:]

    async def _read_lines(self, child: asyncio.subprocess.Process) -> None:
        assert child.stdout is not None
        while line := await child.stdout.readline():
            with contextlib.suppress(msgspec.DecodeError):
                for name, value in _decode(line).items():
                    if name in ("detail", "done_bytes", "total_bytes", "revision", "error"):
                        setattr(self, name, value)
