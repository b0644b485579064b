"""Worker that runs queued batches: leases chunks as there is room, renews the leases, and stores results.

Results are stored together with their usage entries, several requests in one transaction; until then a request counts
as not run, whichever process dies. How a request runs is known to `batch_chunk.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta

from gateway.call import Endpoint
from gateway.jobs.batch_chunk import Chunk, ChunkRunner, RunItem
from gateway.jobs.batch_queue import WAKE_STREAM
from gateway.jobs.webhook_sender import WebhookSender
from gateway.services import Services, keep_running
from storage.columns import uuid7
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from storage.waiters import wait_for_event
from telemetry import metrics
from tenants.jobs import batches
from tenants.jobs.batches import ChunkKey, Completion, Kind

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 2.0  # while no wake-up arrives
CANCEL_INTERVAL_S = 0.2
COLLECT_S = 0.05  # results that arrive within this time share a transaction
EXPIRE_INTERVAL_S = 60.0
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0
_WAKE_WAIT_S = 5.0
_CLOSE_TIMEOUT_S = 5.0


@contextlib.asynccontextmanager
async def batch_worker(
    services: Services, endpoints: Mapping[Kind, Endpoint], run_item: RunItem
) -> AsyncIterator[None]:
    """Run queued batches while the block runs. `endpoints` parse the requests of each kind of batch. At the end,
    results are stored and unfinished chunks go back to the queue."""
    if services.settings.batches.max_calls == 0:
        yield
        return
    worker = BatchWorker(services, endpoints, run_item)
    jobs = [asyncio.create_task(keep_running(loop), name=loop.__qualname__) for loop in worker.loops]
    try:
        yield
    finally:
        await worker.close(jobs)


class BatchWorker:
    """The worker of one gateway. `loops` run concurrently until `close`."""

    def __init__(self, services: Services, endpoints: Mapping[Kind, Endpoint], run_item: RunItem) -> None:
        self._services = services
        self._runner = ChunkRunner(services, endpoints, run_item, lambda: self._is_stopping, self._on_result)
        self._owner = uuid7()
        self._max_calls = services.settings.batches.max_calls
        self._max_per_account = max(1, 3 * self._max_calls // 2)  # leased requests
        self._chunks: dict[ChunkKey, Chunk] = {}
        self._outbox: dict[ChunkKey, list[Completion]] = {}
        self._has_results = asyncio.Event()
        self._has_work = asyncio.Event()  # there may be a chunk to lease, or room for one
        self._is_closing = False
        self._webhooks = WebhookSender(services)
        self.loops = (
            self._lease_all,
            self._store_all,
            self._renew_all,
            self._cancel_all,
            self._listen,
            self._expire_all,
            self._webhooks.run,
        )

    @property
    def _is_stopping(self) -> bool:
        return self._is_closing or self._services.admission.is_draining

    @property
    def _num_unwritten(self) -> int:
        return sum(len(chunk.unwritten) for chunk in self._chunks.values())

    async def _lease_all(self) -> None:
        """Lease chunks while there is room for them, until cancelled."""
        while True:
            self._has_work.clear()
            try:
                while not self._is_stopping and self._has_room and await self._lease():
                    pass
            except StoreUnavailable:
                log.warning("batch queue was not read: the database is unavailable")
            await wait_for_event(self._has_work, POLL_INTERVAL_S)

    async def _lease(self) -> bool:
        """Lease one chunk and start its requests; return True if there was one."""
        services, now = self._services, self._services.clock.now()
        if not await batches.has_work(services.database, now):
            return False
        crowded = self._accounts_with_enough()
        leased = await batches.take(services.database, self._owner, now, services.settings.batches.lease_s, crowded)
        if leased is None:
            return False
        if leased.key in self._chunks:  # this process was suspended for longer than its lease
            return True
        chunk = await self._runner.open(leased)
        self._chunks[leased.key] = chunk
        self._runner.start(chunk, self._on_request_end)
        return True

    def _accounts_with_enough(self) -> set[str]:
        """Return the accounts whose leased requests fill their share; the remaining room is for other accounts."""
        return {account_id for account_id, number in self._num_leased().items() if number >= self._max_per_account}

    def _num_leased(self) -> Counter[str]:
        """Return the number of leased requests without a stored result, by account."""
        found: Counter[str] = Counter()
        for chunk in self._chunks.values():
            found[chunk.leased.account_id] += len(chunk.unwritten)
        return found

    @property
    def _has_room(self) -> bool:
        """True if another chunk may be leased; an account whose chunks are large counts only with its share."""
        return sum(min(number, self._max_per_account) for number in self._num_leased().values()) < 2 * self._max_calls

    def _on_result(self, chunk: Chunk, result: Completion) -> None:
        """Queue a result to be stored."""
        self._outbox.setdefault(chunk.key, []).append(result)
        self._has_results.set()

    def _on_request_end(self, chunk: Chunk) -> None:
        """Make room for other chunks; after the last request, return a chunk that is marked for it."""
        self._has_work.set()
        if chunk.is_returned and not chunk.jobs:
            self._has_results.set()

    async def _store_all(self) -> None:
        """Store results as they come, and return chunks, until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            await self._has_results.wait()
            await asyncio.sleep(COLLECT_S)
            self._has_results.clear()
            try:
                await self._store()
                await self._return_chunks()
                pause_s = _FIRST_PAUSE_S
            except StoreUnavailable:
                log.warning(
                    "batch results were not stored: the database is unavailable", extra={"count": self._num_unwritten}
                )
                self._has_results.set()
                await asyncio.sleep(pause_s)
                pause_s = min(_MAX_PAUSE_S, pause_s * 2)
            except Exception:
                log.exception("batch results cannot be stored; their requests will run again")
                metrics.INTERNAL_ERRORS.inc()
                self._forget(set(self._outbox))

    async def _store(self) -> None:
        """Store the queued results. Raises StoreUnavailable, and keeps them queued then."""
        outbox = {key: list(results) for key, results in self._outbox.items()}
        if not outbox:
            return
        settings, now = self._services.settings.batches, self._services.clock.now()
        times = {"lease_s": settings.lease_s, "ttl_s": settings.ttl_s}
        lost = await batches.store_results(self._services.database, self._owner, outbox, now, **times)
        self._forget(lost)
        for key in outbox.keys() - lost:
            self._note_stored(key, outbox[key])
        self._has_work.set()

    def _note_stored(self, key: ChunkKey, stored: list[Completion]) -> None:
        """Remove stored results from the outbox, and the chunk after its last result."""
        del self._outbox[key][: len(stored)]
        if not self._outbox[key]:
            del self._outbox[key]
        chunk = self._chunks[key]
        chunk.unwritten -= {result.number for result in stored}
        if not chunk.unwritten:
            del self._chunks[key]
            self._webhooks.wake()

    def _forget(self, keys: set[ChunkKey]) -> None:
        """Drop chunks that another gateway has leased."""
        for key in keys:
            self._outbox.pop(key, None)
            chunk = self._chunks.pop(key, None)
            for job in chunk.jobs if chunk is not None else ():
                job.cancel()

    async def _return_chunks(self) -> None:
        """Return chunks to the queue that have no running request and no result to store. Raises StoreUnavailable."""
        now = self._services.clock.now()
        returned = [
            chunk
            for chunk in self._chunks.values()
            if chunk.is_returned and not chunk.jobs and chunk.key not in self._outbox
        ]
        for chunk in returned:
            waited_s = (now - chunk.leased.created_at).total_seconds()
            pause_s = 0.0 if self._is_stopping else min(_MAX_PAUSE_S, max(_FIRST_PAUSE_S, waited_s / 10))
            free_at = now + timedelta(seconds=pause_s)
            await batches.release(self._services.database, self._owner, [chunk.key], free_at)
            del self._chunks[chunk.key]
            asyncio.get_running_loop().call_later(pause_s, self._has_work.set)

    async def _renew_all(self) -> None:
        """Renew the leases of this worker, until cancelled."""
        services, lease_s = self._services, self._services.settings.batches.lease_s
        while True:
            await asyncio.sleep(lease_s / 3)
            if self._chunks:
                with contextlib.suppress(StoreUnavailable):
                    await batches.renew(services.database, self._owner, self._chunks, services.clock.now(), lease_s)

    async def _cancel_all(self) -> None:
        """End the calls of cancelled batches and background responses, until cancelled."""
        while True:
            await asyncio.sleep(CANCEL_INTERVAL_S)
            running = [chunk for chunk in self._chunks.values() if not chunk.is_cancelled]
            if not running:
                continue
            with contextlib.suppress(StoreUnavailable):
                batch_ids = {chunk.key[0] for chunk in running}
                cancelled = await batches.cancelled_among(self._services.database, batch_ids)
                for chunk in running:
                    if chunk.key[0] in cancelled:
                        chunk.cancel()

    async def _listen(self) -> None:
        """Wait for wake-ups through Redis, until cancelled."""
        ephemeral = Ephemeral.connect(self._services.settings.redis_url, timeout_s=2 * _WAKE_WAIT_S)
        try:
            while True:
                with contextlib.suppress(StoreUnavailable):
                    async for _ in ephemeral.follow(WAKE_STREAM, _WAKE_WAIT_S):
                        self._has_work.set()
                await asyncio.sleep(POLL_INTERVAL_S)
        finally:
            await ephemeral.close()

    async def _expire_all(self) -> None:
        """Delete expired batches, until cancelled."""
        while True:
            await asyncio.sleep(EXPIRE_INTERVAL_S)
            with contextlib.suppress(StoreUnavailable):
                while await batches.expire(self._services.database, self._services.clock.now()):
                    pass

    async def close(self, loops: list[asyncio.Task[None]]) -> None:
        """Store results and return the remaining chunks. If the database is unavailable, their leases expire."""
        self._is_closing = True
        for loop in loops:
            loop.cancel()
        jobs = [job for chunk in self._chunks.values() for job in chunk.jobs]
        for job in jobs:
            job.cancel()
        await asyncio.gather(*loops, *jobs, return_exceptions=True)
        for chunk in self._chunks.values():
            chunk.is_returned = True
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._store()
                await self._return_chunks()
