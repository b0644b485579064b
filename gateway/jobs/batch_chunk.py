"""Runs the requests of one chunk of a queued batch on this gateway.

A request that finds no node goes back to the queue; a request that fails for another reason is retried a few times, and
then its error is the result. Which chunks exist and where results are stored is known to `batch_worker.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gateway.authentication import RUN_MODELS_SCOPE, require_model
from gateway.call import Endpoint
from gateway.errors import Reason, Refusal
from gateway.jobs import batch_results
from gateway.jobs.batch_request import Request, call_body
from gateway.jobs.synchronous_batch import CallEnds, ItemResponse, item_refusal
from gateway.model_names import find_model
from gateway.request_context import RequestContext
from gateway.services import Services
from telemetry import metrics
from telemetry.fair_share import FairQueue, current_account
from tenants import accounts
from tenants.credentials.principal import AccountTerms, Principal
from tenants.jobs.batches import ChunkKey, Completion, Kind, LeasedChunk
from tenants.usage.usage_entries import UsageEntry

log = logging.getLogger(__name__)

MAX_TRIES = 3  # for a request that fails for reasons outside the request
MAX_LOSSES = 10  # gateways that died with a chunk before its remaining requests fail
_FIRST_PAUSE_S = 0.5

_decode = msgspec.json.Decoder(list[Request]).decode
_RETRYABLE = frozenset({Reason.ABORTED, Reason.TIMEOUT, Reason.INTERNAL})


class RunItem(Protocol):
    """Runs one request of a batch (`pipeline.run_item`). `on_start` receives the running calls. Raises Refusal, or what
    `errors.refusal_of` translates."""

    def __call__(
        self, context: RequestContext, body: Request, on_start: Callable[[CallEnds], None], /
    ) -> Awaitable[ItemResponse]: ...


@dataclass(eq=False)
class Chunk:
    """`unwritten` are the numbers of requests without a stored result. With `refusal` set no request runs any more, and
    each has the refusal as its result."""

    leased: LeasedChunk
    terms: AccountTerms  # terms of the account at the time of the lease
    requests: list[Request]
    refusal: Refusal | None
    unwritten: set[int]
    jobs: set[asyncio.Task[None]] = field(default_factory=set)
    running: dict[int, CallEnds] = field(default_factory=dict)  # calls by request number
    is_returned: bool = False  # goes back to the queue once no request runs
    is_cancelled: bool = False

    @property
    def key(self) -> ChunkKey:
        return self.leased.key

    def cancel(self) -> None:
        """End the running calls: the account cancelled the batch."""
        self.is_cancelled = True
        for calls in list(self.running.values()):
            calls.abandon()


class _EntryBuffer:
    """Buffers the usage entries of a request, one for each prompt, until they are stored together with the result."""

    def __init__(self) -> None:
        self.entries: list[UsageEntry] = []

    async def record(self, entry: UsageEntry) -> None:
        self.entries.append(entry)


class ChunkRunner:
    """Runs the requests of chunks, at most `batches.max_calls` at the same time, accounts in turn; `on_result` receives
    each result. While `is_stopping` returns True, no request starts."""

    def __init__(
        self,
        services: Services,
        endpoints: Mapping[Kind, Endpoint],
        run_item: RunItem,
        is_stopping: Callable[[], bool],
        on_result: Callable[[Chunk, Completion], None],
    ) -> None:
        self._services = services
        self._endpoints = endpoints
        self._run_item = run_item
        self._is_stopping = is_stopping
        self._on_result = on_result
        self._max_calls = services.settings.batches.max_calls
        self._room = FairQueue(self._max_calls, max_per_account=max(1, self._max_calls - 1))

    async def open(self, leased: LeasedChunk) -> Chunk:
        """Return the chunk with its requests, or with a refusal if they must not run. Raises StoreUnavailable."""
        services, numbers = self._services, range(leased.key[1], leased.key[1] + leased.num_requests)
        residency, terms = await accounts.call_terms(services.database, leased.account_id, leased.api_token_id)
        requests: list[Request] = [{} for _ in numbers]
        if residency.rules or residency.is_zero_retention:  # since the batch was queued
            refusal: Refusal | None = Refusal(Reason.ABORTED)
        else:
            try:
                requests = _decode(services.batches.decrypt(leased.account_id, leased.requests))
            except (ValueError, msgspec.MsgspecError):
                log.error(
                    "queued requests are unreadable; has HEARTH_CACHE_SECRET changed?",
                    extra={"batch": leased.key[0]},
                )
                refusal = Refusal(Reason.INTERNAL)
            else:
                refusal = self._refusal_for(leased)
        return Chunk(leased, terms, requests, refusal, set(numbers) - leased.finished)

    def start(self, chunk: Chunk, on_end: Callable[[Chunk], None]) -> None:
        """Start the requests of a chunk; `on_end` is called after each."""
        for number in sorted(chunk.unwritten):
            job = asyncio.create_task(self._run(chunk, number))
            chunk.jobs.add(job)
            job.add_done_callback(chunk.jobs.discard)
            job.add_done_callback(lambda _job: on_end(chunk))

    def _refusal_for(self, leased: LeasedChunk) -> Refusal | None:
        """Return why the requests of a chunk must not run any more, or None."""
        waited_s = (self._services.clock.now() - leased.created_at).total_seconds()
        if leased.is_cancelled:
            return Refusal(Reason.ABORTED)
        if leased.is_account_blocked:
            return Refusal(Reason.ACCOUNT_BLOCKED)
        if waited_s > self._services.settings.batches.deadline_s:
            return Refusal(Reason.TIMEOUT)
        return Refusal(Reason.ABORTED) if leased.num_losses >= MAX_LOSSES else None

    async def _run(self, chunk: Chunk, number: int) -> None:
        """Run one request of a chunk to its result, or mark the chunk to go back to the queue."""
        request = chunk.requests[number - chunk.key[1]]
        current_account.set(chunk.leased.account_id)
        for attempt in range(MAX_TRIES):
            buffer = _EntryBuffer()
            async with self._room.slot(chunk.leased.account_id):
                if self._is_stopping() or chunk.is_returned:
                    chunk.is_returned = True
                    return
                result = await self._try(chunk, number, request, buffer)
            if not isinstance(result, Refusal) or chunk.is_cancelled or chunk.refusal is not None:
                break
            if self._is_stopping() or _is_transient(result):
                chunk.is_returned = True
                return
            if result.reason not in _RETRYABLE or attempt == MAX_TRIES - 1:
                break
            await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)
        self._report(chunk, number, request, buffer, result)

    async def _try(self, chunk: Chunk, number: int, request: Request, buffer: _EntryBuffer) -> ItemResponse | Refusal:
        """Run one request, and return its response or the reason why there is none."""
        if chunk.is_cancelled:
            return Refusal(Reason.ABORTED)
        if chunk.refusal is not None:
            return chunk.refusal
        try:
            with metrics.BATCH_CALLS.track_inprogress():
                return await self._call(chunk, number, request, buffer)
        except Exception as error:
            if chunk.is_cancelled:
                return Refusal(Reason.ABORTED)
            return item_refusal(error, f"{chunk.key[0]}-{number}")

    async def _call(self, chunk: Chunk, number: int, request: Request, buffer: _EntryBuffer) -> ItemResponse:
        """Run one request. Raises what the pipeline raises."""
        services, leased = self._services, chunk.leased
        batch_id = leased.key[0]
        principal = Principal(
            leased.account_id, leased.api_token_id, frozenset({RUN_MODELS_SCOPE}), account=chunk.terms
        )
        model = await find_model(services.registry, leased.requested_model)
        require_model(principal, model.requested_name, model.card.name)
        with services.admission.enter(leased.account_id) as slot:
            context = RequestContext(
                services=services,
                endpoint=self._endpoints[leased.kind],
                request_id=batch_id if leased.kind == "response" else f"{batch_id}-{number}",
                principal=principal,
                model=model,
                slot=slot,
                ledger=buffer,
                started_s=services.clock.monotonic_s(),
                is_batch=True,
            )

            def on_start(calls: CallEnds) -> None:
                slot.stop = calls.stop
                chunk.running[number] = calls
                if chunk.is_cancelled:
                    calls.abandon()

            try:
                return await self._run_item(context, call_body(request), on_start)
            finally:
                chunk.running.pop(number, None)

    def _report(
        self, chunk: Chunk, number: int, request: Request, buffer: _EntryBuffer, result: ItemResponse | Refusal
    ) -> None:
        """Encrypt a result and pass it on to be stored."""
        reference = request.get("external_reference")
        if isinstance(result, Refusal):
            content = batch_results.failed_item(number, reference, result)
            prompt_tokens = completion_tokens = 0
            outcome = str(result.row.code)
        else:
            content = batch_results.successful_item(number, reference, result.body)
            prompt_tokens, completion_tokens = result.usage.prompt_tokens, result.usage.completion_tokens
            outcome = "finished"
        metrics.BATCH_RESPONSES.labels(chunk.leased.requested_model, outcome).inc()
        sealed = self._services.batches.sealer.seal(chunk.leased.account_id, content)
        entries, is_failed = tuple(buffer.entries), isinstance(result, Refusal)
        self._on_result(chunk, Completion(number, sealed, prompt_tokens, completion_tokens, entries, is_failed))


def _is_transient(refusal: Refusal) -> bool:
    """Return True if the request may succeed later."""
    return refusal.row.status in (429, 503) and refusal.row.should_retry is not False
