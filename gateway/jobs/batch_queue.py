"""The queue of batches as requests see it: queue one, ask how it stands, read its answers.

Requests and answers lie in the database, sealed for their account; a stream in Redis is no more than a doorbell, so
that workers need not look often. Runs nothing: `worker.py` does.
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
from gateway.jobs import batch_request as batch_body
from gateway.jobs import batch_results as batch_answers
from gateway.jobs.batch_request import Poll, Queue
from gateway.jobs.sealed_content import Sealer
from storage.database import Database
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from telemetry.clock import Clock
from tenants.credentials.principal import Principal
from tenants.jobs import batches
from tenants.jobs.batches import BatchState, Kind, NewBatch, NewChunk, QueueFull

log = logging.getLogger(__name__)

DOORBELL = "batches"
_MAX_SEALED_BYTES = 64 << 20  # of one answer, or one chunk's requests
PAGE_ANSWERS = 128
RETRY_FULL_S = 30

_DOORBELL_ENTRIES = 1000


@dataclass(frozen=True)
class Batches:
    """The queue of all accounts."""

    database: Database
    ephemeral: Ephemeral
    sealer: Sealer
    clock: Clock
    max_waiting: int
    client_stall_timeout_s: float

    async def submit(
        self, queue: Queue, batch_id: str, principal: Principal, resolved: Resolved, kind: Kind = "run"
    ) -> bytes:
        """Queue requests; the answer's body. With the id of one that is queued nothing is queued. Raises Refusal,
        StoreUnavailable."""
        account_id = principal.account_id
        if resolved.card.properties.get("async_queue") == "false":
            raise Refusal(Reason.BATCH_UNSUPPORTED, resolved.card.name)
        chunks = await asyncio.to_thread(self._sealed, queue, account_id, resolved.card)
        batch = NewBatch(
            batch_id=batch_id,
            account_id=account_id,
            api_token_id=principal.api_token_id,
            shown_model=resolved.requested_name,
            model=resolved.card.name,
            created_at=self.clock.now(),
            chunks=chunks,
            webhook=None if queue.webhook is None else self.sealer.seal(account_id, envelope.encode(queue.webhook)),
            kind=kind,
        )
        try:
            await batches.submit(self.database, batch, max_waiting=self.max_waiting)
        except QueueFull:
            raise Refusal(Reason.BATCH_QUEUE_FULL, retry_after_s=RETRY_FULL_S) from None
        await self.ring(batch_id)
        told = {"status": "queued", "request_id": batch_id, "model": resolved.requested_name}
        return envelope.success(told)

    async def ring(self, batch_id: str) -> None:
        """Have workers look what is to be done, if they can be told."""
        try:
            await self.ephemeral.append(DOORBELL, batch_id.encode(), _DOORBELL_ENTRIES)
        except StoreUnavailable:
            log.warning("no worker could be told of a batch; they look by themselves")

    def _sealed(self, queue: Queue, account_id: str, card: ModelCard) -> list[NewChunk]:
        return [
            NewChunk(first, len(requests), cost, self.sealer.seal(account_id, envelope.encode(requests)))
            for first, requests, cost in batch_body.chunks_of(queue.requests, card)
        ]

    async def answer(self, poll: Poll, account_id: str, resolved: Resolved, exchange: Exchange) -> None:
        """Say how a batch stands: with its answers, when it has them all. Raises Refusal, StoreUnavailable."""
        state = await batches.find(self.database, account_id, poll.batch_id, self.clock.now())
        if state is None or (resolved.requested_name != state.shown_model and resolved.card.name != state.model):
            raise Refusal(Reason.BATCH_UNKNOWN)
        if not state.is_finished:
            status = "running" if state.is_started else "queued"
            await exchange.send_json(200, envelope.success({"status": status, "request_id": poll.batch_id}), [])
        elif state.num_requests <= PAGE_ANSWERS:
            parts = [part async for part in self._parts(poll.batch_id, account_id, state)]
            await exchange.send_json(200, b"".join(parts), [])
        else:
            is_bare = exchange.dialect == "binding"
            parts_of = self._parts(poll.batch_id, account_id, state, is_bare=is_bare)
            await exchange.send_parts(parts_of, self.client_stall_timeout_s)

    async def _parts(
        self, batch_id: str, account_id: str, state: BatchState, *, is_bare: bool = False
    ) -> AsyncIterator[bytes]:
        """The body of a finished batch's answer."""
        tokens = await batches.tokens_of(self.database, account_id, batch_id)
        yield batch_answers.BARE_HEAD if is_bare else batch_answers.HEAD
        for first in range(0, state.num_requests, PAGE_ANSWERS):
            sealed = await batches.answers(self.database, account_id, batch_id, first, PAGE_ANSWERS)
            if len(sealed) < min(PAGE_ANSWERS, state.num_requests - first):
                raise StoreUnavailable("answers of a batch have gone while they were read")
            opened = await asyncio.to_thread(self._joined, account_id, sealed)
            yield b"," + opened if first else opened
        yield batch_answers.bare_tail(*tokens) if is_bare else batch_answers.tail(*tokens)

    def _joined(self, account_id: str, sealed: list[bytes]) -> bytes:
        return b",".join(self.opened(account_id, answer) for answer in sealed)

    def opened(self, account_id: str, sealed: bytes) -> bytes:
        """What of a batch lay in the database: a chunk's requests, an answer, a webhook. Raises ValueError."""
        return self.sealer.open(account_id, sealed, _MAX_SEALED_BYTES)
