"""The queue of batches as requests see it: submit a batch, poll its status, read its results.

Requests and results are stored in the database, encrypted for their account. A Redis stream only wakes the workers, so
that they need not poll the database often. Batches are run by `batch_worker.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from catalog.card import ModelCard
from catalog.registry import Resolved
from gateway import envelope
from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange
from gateway.jobs import batch_results
from gateway.jobs.batch_request import BatchPoll, QueuedBatch, Request, chunks_of
from gateway.jobs.sealed_content import Sealer
from storage.database import Database
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from telemetry.clock import Clock
from tenants.credentials.principal import Principal
from tenants.jobs import batches
from tenants.jobs.batches import BatchState, Kind, NewBatch, NewChunk, QueueFull

log = logging.getLogger(__name__)

WAKE_STREAM = "batches"
PAGE_RESULTS = 128
RETRY_AFTER_FULL_S = 30

_MAX_CONTENT_BYTES = 64 << 20  # limit for one result, or for the requests of one chunk
_MAX_WAKE_ENTRIES = 1000


@dataclass(frozen=True)
class Batches:
    """The queue of all accounts."""

    database: Database
    ephemeral: Ephemeral
    sealer: Sealer
    clock: Clock
    max_waiting: int

    async def submit(
        self, batch: QueuedBatch, batch_id: str, principal: Principal, resolved: Resolved, kind: Kind = "run"
    ) -> bytes:
        """Queue a batch, unless one with this id is queued already; return the body of the response. Raises Refusal,
        StoreUnavailable."""
        account_id = principal.account_id
        if resolved.card.properties.get("async_queue") == "false":
            raise Refusal(Reason.BATCH_UNSUPPORTED, resolved.card.name)
        chunks = await asyncio.to_thread(self._encrypt, batch.requests, account_id, resolved.card)
        row = NewBatch(
            batch_id=batch_id,
            account_id=account_id,
            api_token_id=principal.api_token_id,
            requested_model=resolved.requested_name,
            model=resolved.card.name,
            created_at=self.clock.now(),
            chunks=chunks,
            webhook=None if batch.webhook is None else self.sealer.seal(account_id, envelope.encode(batch.webhook)),
            kind=kind,
        )
        try:
            await batches.submit(self.database, row, max_waiting=self.max_waiting)
        except QueueFull:
            raise Refusal(Reason.BATCH_QUEUE_FULL, retry_after_s=RETRY_AFTER_FULL_S) from None
        await self.wake_workers(batch_id)
        return envelope.success({"status": "queued", "request_id": batch_id, "model": resolved.requested_name})

    async def wake_workers(self, batch_id: str) -> None:
        """Wake the workers of all gateways. While Redis is unavailable they find the batch by polling."""
        try:
            await self.ephemeral.append(WAKE_STREAM, batch_id.encode(), _MAX_WAKE_ENTRIES)
        except StoreUnavailable:
            log.warning("workers were not woken: Redis is unavailable")

    def _encrypt(self, requests: list[Request], account_id: str, card: ModelCard) -> list[NewChunk]:
        return [
            NewChunk(first, len(chunk), cost, self.sealer.seal(account_id, envelope.encode(chunk)))
            for first, chunk, cost in chunks_of(requests, card)
        ]

    async def send_status(self, poll: BatchPoll, account_id: str, resolved: Resolved, exchange: Exchange) -> None:
        """Send the status of a batch, or its results once all are there. Raises Refusal, StoreUnavailable."""
        state = await batches.find(self.database, account_id, poll.batch_id, self.clock.now())
        if state is None or (resolved.requested_name != state.requested_model and resolved.card.name != state.model):
            raise Refusal(Reason.BATCH_UNKNOWN)
        if not state.is_finished:
            status = "running" if state.is_started else "queued"
            await exchange.send_whole(200, envelope.success({"status": status, "request_id": poll.batch_id}), [])
        elif state.num_requests <= PAGE_RESULTS:
            parts = [part async for part in self._parts(poll.batch_id, account_id, state)]
            await exchange.send_whole(200, b"".join(parts), [])
        else:
            parts_of = self._parts(poll.batch_id, account_id, state, is_bare=exchange.is_binding)
            await exchange.send_parts(parts_of)

    async def _parts(
        self, batch_id: str, account_id: str, state: BatchState, *, is_bare: bool = False
    ) -> AsyncIterator[bytes]:
        """Yield the body with the results of a finished batch; `is_bare` omits the envelope."""
        tokens = await batches.tokens_of(self.database, account_id, batch_id)
        yield batch_results.BARE_HEAD if is_bare else batch_results.HEAD
        for first in range(0, state.num_requests, PAGE_RESULTS):
            sealed = await batches.read_results(self.database, account_id, batch_id, first, PAGE_RESULTS)
            if len(sealed) < min(PAGE_RESULTS, state.num_requests - first):
                raise StoreUnavailable("batch results expired while they were read")
            results = await asyncio.to_thread(self._join, account_id, sealed)
            yield b"," + results if first else results
        yield batch_results.bare_tail(*tokens) if is_bare else batch_results.tail(*tokens)

    def _join(self, account_id: str, sealed: list[bytes]) -> bytes:
        return b",".join(self.decrypt(account_id, result) for result in sealed)

    def decrypt(self, account_id: str, sealed: bytes) -> bytes:
        """Decrypt the requests of a chunk, a result or a webhook. Raises ValueError."""
        return self.sealer.open(account_id, sealed, _MAX_CONTENT_BYTES)
