"""Runs queued batches: takes chunks as there is room, keeps them as long as they run, and writes answers down.

An answer goes into the database together with its usage entry, for several requests at once; until then the request
counts as not run, whoever dies. Knows the queue's rows, not what a request is or how it is run: `chunk.py` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta

from gateway.call import Door
from gateway.jobs.batch_chunk import Chunk, ChunkRunner, RunItem
from gateway.jobs.batch_queue import DOORBELL
from gateway.jobs.webhook_sender import WebhookSender
from gateway.services import Services, keep_running
from storage.columns import uuid7
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from telemetry import metrics
from tenants.jobs import batches
from tenants.jobs.batches import Answered, ChunkKey, Kind

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 2.0  # without a doorbell
CANCEL_INTERVAL_S = 0.2
GATHER_S = 0.05  # answers for one transaction
EXPIRE_INTERVAL_S = 60.0
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0
_DOORBELL_WAIT_S = 5.0
_CLOSE_TIMEOUT_S = 5.0


@contextlib.asynccontextmanager
async def working(services: Services, doors: Mapping[Kind, Door], run_item: RunItem) -> AsyncIterator[None]:
    """Queued batches are run within the block: `run_item` makes a call, `doors` say for each kind of batch how its
    requests are read. At its end what was answered is written, the rest given back."""
    if services.settings.batches.max_calls == 0:
        yield
        return
    worker = BatchWorker(services, doors, run_item)
    jobs = [asyncio.create_task(keep_running(loop), name=loop.__qualname__) for loop in worker.loops]
    try:
        yield
    finally:
        await worker.close(jobs)


class BatchWorker:
    """One gateway's. `loops` run beside each other until `close`."""

    def __init__(self, services: Services, doors: Mapping[Kind, Door], run_item: RunItem) -> None:
        self._services = services
        self._runner = ChunkRunner(services, doors, run_item, lambda: self._is_leaving, self._on_answer)
        self._owner = uuid7()
        self._max_calls = services.settings.batches.max_calls
        self._chunks: dict[ChunkKey, Chunk] = {}
        self._outbox: dict[ChunkKey, list[Answered]] = {}
        self._has_answers = asyncio.Event()
        self._is_wanted = asyncio.Event()  # something may be there to take, or to take it with
        self._is_closing = False
        self._webhooks = WebhookSender(services)
        self.loops = (
            self._take_all,
            self._write_all,
            self._renew_all,
            self._cancel_all,
            self._listen,
            self._expire_all,
            self._webhooks.run,
        )

    @property
    def _is_leaving(self) -> bool:
        return self._is_closing or self._services.admission.is_draining

    @property
    def _num_unwritten(self) -> int:
        return sum(len(chunk.unwritten) for chunk in self._chunks.values())

    async def _take_all(self) -> None:
        """Take chunks while there is room for them, for ever."""
        while True:
            self._is_wanted.clear()
            try:
                while not self._is_leaving and self._num_unwritten < 2 * self._max_calls and await self._take():
                    pass
            except StoreUnavailable:
                log.warning("the queue of batches cannot be read now")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await self._is_wanted.wait()

    async def _take(self) -> bool:
        """Take a chunk and begin with it; whether there was one."""
        services, now = self._services, self._services.clock.now()
        if not await batches.has_work(services.database, now):
            return False
        leased = await batches.take(services.database, self._owner, now, services.settings.batches.lease_s)
        if leased is None:
            return False
        if leased.key in self._chunks:  # this process stood still for longer than its lease, and works on it already
            return True
        chunk = await self._runner.open(leased)
        self._chunks[leased.key] = chunk
        self._runner.start(chunk, self._look_at)
        return True

    def _on_answer(self, chunk: Chunk, answered: Answered) -> None:
        """Have an answer written down."""
        self._outbox.setdefault(chunk.key, []).append(answered)
        self._has_answers.set()

    def _look_at(self, chunk: Chunk) -> None:
        """A job has ended, or answers were written: when it was the last, the chunk is over, or goes back."""
        self._is_wanted.set()
        if chunk.is_given_back and not chunk.jobs:
            self._has_answers.set()

    async def _write_all(self) -> None:
        """Write answers down as they come, and give back what is to be given back, for ever."""
        pause_s = _FIRST_PAUSE_S
        while True:
            await self._has_answers.wait()
            await asyncio.sleep(GATHER_S)
            self._has_answers.clear()
            try:
                await self._write()
                await self._give_back()
                pause_s = _FIRST_PAUSE_S
            except StoreUnavailable:
                log.warning("answers to batches wait for the database", extra={"count": self._num_unwritten})
                self._has_answers.set()
                await asyncio.sleep(pause_s)
                pause_s = min(_MAX_PAUSE_S, pause_s * 2)
            except Exception:
                log.exception("answers to batches cannot be written; their requests are run again")
                metrics.INTERNAL_ERRORS.inc()
                self._forget(set(self._outbox))

    async def _write(self) -> None:
        """Write down what is answered. Raises StoreUnavailable: it then stays to be written."""
        outbox = {key: list(answered) for key, answered in self._outbox.items()}
        if not outbox:
            return
        settings, now = self._services.settings.batches, self._services.clock.now()
        lost = await batches.answer(
            self._services.database,
            self._owner,
            outbox,
            now,
            lease_s=settings.lease_s,
            ttl_s=settings.ttl_s,
        )
        self._forget(lost)
        for key in outbox.keys() - lost:
            self._note_written(key, outbox[key])
        self._is_wanted.set()

    def _note_written(self, key: ChunkKey, written: list[Answered]) -> None:
        rest = self._outbox[key][len(written) :]
        if rest:
            self._outbox[key] = rest
        else:
            del self._outbox[key]
        chunk = self._chunks[key]
        chunk.unwritten -= {one.number for one in written}
        if not chunk.unwritten:
            del self._chunks[key]
            self._webhooks.wake()

    def _forget(self, keys: set[ChunkKey]) -> None:
        """Have nothing more to do with chunks that are another's now."""
        for key in keys:
            self._outbox.pop(key, None)
            chunk = self._chunks.pop(key, None)
            for job in chunk.jobs if chunk is not None else ():
                job.cancel()

    async def _give_back(self) -> None:
        """Give back chunks of which nothing runs and nothing is to be written. Raises StoreUnavailable."""
        now = self._services.clock.now()
        over = [
            chunk
            for chunk in self._chunks.values()
            if chunk.is_given_back and not chunk.jobs and chunk.key not in self._outbox
        ]
        for chunk in over:
            waited_s = (now - chunk.leased.created_at).total_seconds()
            pause_s = 0.0 if self._is_leaving else min(_MAX_PAUSE_S, max(_FIRST_PAUSE_S, waited_s / 10))
            free_at = now + timedelta(seconds=pause_s)
            await batches.give_back(self._services.database, self._owner, [chunk.key], free_at)
            del self._chunks[chunk.key]
            asyncio.get_running_loop().call_later(pause_s, self._is_wanted.set)

    async def _renew_all(self) -> None:
        """Keep what this worker knows that it has, for ever."""
        services, lease_s = self._services, self._services.settings.batches.lease_s
        while True:
            await asyncio.sleep(lease_s / 3)
            if self._chunks:
                with contextlib.suppress(StoreUnavailable):
                    await batches.renew(services.database, self._owner, self._chunks, services.clock.now(), lease_s)

    async def _cancel_all(self) -> None:
        """End calls of responses whose clients want them no more, for ever."""
        while True:
            await asyncio.sleep(CANCEL_INTERVAL_S)
            running = {key[0]: chunk for key, chunk in self._chunks.items() if chunk.leased.kind == "response"}
            waiting = [batch_id for batch_id, chunk in running.items() if not chunk.is_cancelled]
            if not waiting:
                continue
            with contextlib.suppress(StoreUnavailable):
                for batch_id in await batches.cancelled_among(self._services.database, waiting):
                    running[batch_id].cancel()

    async def _listen(self) -> None:
        """Hear of batches that are queued, for ever."""
        ephemeral = Ephemeral.connect(self._services.settings.redis_url, timeout_s=2 * _DOORBELL_WAIT_S)
        try:
            while True:
                try:
                    async for _ in ephemeral.follow(DOORBELL, _DOORBELL_WAIT_S):
                        self._is_wanted.set()
                except StoreUnavailable:
                    await asyncio.sleep(LOOK_INTERVAL_S)
        finally:
            await ephemeral.close()

    async def _expire_all(self) -> None:
        """Let go of batches whose time is over, for ever."""
        while True:
            await asyncio.sleep(EXPIRE_INTERVAL_S)
            with contextlib.suppress(StoreUnavailable):
                while await batches.expire(self._services.database, self._services.clock.now()):
                    pass

    async def close(self, loops: list[asyncio.Task[None]]) -> None:
        """Write what is answered, give back the rest. What cannot be told to the database, its lease will tell."""
        self._is_closing = True
        for loop in loops:
            loop.cancel()
        jobs = [job for chunk in self._chunks.values() for job in chunk.jobs]
        for job in jobs:
            job.cancel()
        await asyncio.gather(*loops, *jobs, return_exceptions=True)
        for chunk in self._chunks.values():
            chunk.is_given_back = True
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._write()
                await self._give_back()
