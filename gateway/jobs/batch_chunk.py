"""A chunk of a queued batch while this gateway has it: whether its requests are run at all, and how each is.

What finds no node now is given back to the queue; what fails for another reason is tried a few times, and then that is
its answer. Knows how to run one call, not how models answer; which chunks there are, and where answers are written, is
`worker.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gateway import envelope
from gateway.authentication import RUN_MODELS_SCOPE
from gateway.call import Door
from gateway.errors import Reason, Refusal
from gateway.jobs import batch_results as batch_answers
from gateway.jobs.batch_request import Request, call_of
from gateway.jobs.synchronous_batch import Ending, ItemAnswer, OnStart, told
from gateway.metering import Ledger
from gateway.model_names import find_model
from gateway.preparation import Order
from gateway.services import Services
from telemetry import metrics
from tenants import accounts
from tenants.credentials.principal import AccountTerms, Principal
from tenants.jobs.batches import Answered, ChunkKey, Kind, Leased
from tenants.usage.usage_entries import UsageEntry

log = logging.getLogger(__name__)

MAX_TRIES = 3  # of a request that fails without being at fault itself
MAX_LOSSES = 10  # owners of a chunk, before what is left of it is taken to be the cause
_FIRST_PAUSE_S = 0.5

_decode = msgspec.json.Decoder(list[Request]).decode
_TRIED_AGAIN = frozenset({Reason.ABORTED, Reason.TIMEOUT, Reason.INTERNAL})


class RunItem(Protocol):
    """Makes one call of a batch, to its end. `ledger` is given its usage entry, `on_start` what ends it early. Raises
    Refusal, or what `errors.refusal_of` knows."""

    def __call__(
        self, services: Services, door: Door, order: Order, body: Request, ledger: Ledger, on_start: OnStart, /
    ) -> Awaitable[ItemAnswer]: ...


@dataclass(eq=False)
class Chunk:
    """`unwritten` are the requests whose answers are not in the database yet; `why_not` is the answer to all of them
    where they are not run any more."""

    leased: Leased
    terms: AccountTerms  # of its account, when it was taken
    requests: list[Request]
    why_not: Refusal | None
    unwritten: set[int]
    jobs: set[asyncio.Task[None]] = field(default_factory=set)
    endings: dict[int, Ending] = field(default_factory=dict)  # of calls under way, by their numbers
    is_given_back: bool = False  # once nothing of it runs any more
    is_cancelled: bool = False

    @property
    def key(self) -> ChunkKey:
        return self.leased.key

    def cancel(self) -> None:
        """End what is under way: its client wants it no more."""
        self.is_cancelled = True
        for ending in list(self.endings.values()):
            ending.abandon()


class _Slip:
    """Holds a request's usage entries, one for each prompt, until they are written together with the answer."""

    def __init__(self) -> None:
        self.entries: list[UsageEntry] = []

    async def record(self, entry: UsageEntry) -> None:
        self.entries.append(entry)


class ChunkRunner:
    """Runs the requests of chunks, as many at once as this gateway is to; `on_answer` is given each answer. While
    `is_leaving`, nothing begins any more."""

    def __init__(
        self,
        services: Services,
        doors: Mapping[Kind, Door],
        run_item: RunItem,
        is_leaving: Callable[[], bool],
        on_answer: Callable[[Chunk, Answered], None],
    ) -> None:
        self._services = services
        self._doors = doors
        self._run_item = run_item
        self._is_leaving = is_leaving
        self._on_answer = on_answer
        self._room = asyncio.Semaphore(services.settings.batches.max_calls)

    async def open(self, leased: Leased) -> Chunk:
        """Read a chunk, unless it may not be read any more. Raises StoreUnavailable."""
        services, numbers = self._services, range(leased.key[1], leased.key[1] + leased.num_requests)
        residency, terms = await accounts.standing_of_calls(services.database, leased.account_id, leased.api_token_id)
        requests: list[Request] = [{} for _ in numbers]
        if residency.rules or residency.is_zero_retention:  # since the batch was queued
            why_not: Refusal | None = Refusal(Reason.ABORTED)
        else:
            try:
                requests = _decode(services.batches.opened(leased.account_id, leased.requests))
            except (ValueError, msgspec.MsgspecError):
                log.error(
                    "queued requests cannot be read: has the cache secret changed?", extra={"batch": leased.key[0]}
                )
                why_not = Refusal(Reason.INTERNAL)
            else:
                why_not = self._why_not(leased)
        return Chunk(leased, terms, requests, why_not, set(numbers) - leased.answered)

    def start(self, chunk: Chunk, on_end: Callable[[Chunk], None]) -> None:
        """Begin with its requests; `on_end` is called at the end of each."""
        for number in sorted(chunk.unwritten):
            job = asyncio.create_task(self._run(chunk, number))
            chunk.jobs.add(job)
            job.add_done_callback(chunk.jobs.discard)
            job.add_done_callback(lambda _job: on_end(chunk))

    def _why_not(self, leased: Leased) -> Refusal | None:
        """Why the requests of a chunk are not run any more, or None."""
        waited_s = (self._services.clock.now() - leased.created_at).total_seconds()
        if leased.is_cancelled:
            return Refusal(Reason.ABORTED)
        if leased.is_account_blocked:
            return Refusal(Reason.ACCOUNT_BLOCKED)
        if waited_s > self._services.settings.batches.deadline_s:
            return Refusal(Reason.TIMEOUT)
        return Refusal(Reason.ABORTED) if leased.num_losses >= MAX_LOSSES else None

    async def _run(self, chunk: Chunk, number: int) -> None:
        """Answer one request of a chunk, unless it has to wait for a better time."""
        request = chunk.requests[number - chunk.key[1]]
        slip = _Slip()
        for attempt in range(MAX_TRIES):
            async with self._room:
                if self._is_leaving() or chunk.is_given_back:
                    chunk.is_given_back = True
                    return
                slip = _Slip()
                try:
                    if chunk.why_not is not None:
                        raise chunk.why_not
                    with metrics.BATCH_CALLS.track_inprogress():
                        found = await self._call(chunk, number, request, slip)
                except Exception as error:
                    refusal = Refusal(Reason.ABORTED) if chunk.is_cancelled else told(error, f"{chunk.key[0]}-{number}")
                else:
                    self._answer(chunk, number, request, slip, found)
                    return
            if chunk.is_cancelled:
                break
            if chunk.why_not is None and (self._is_leaving() or _is_to_wait(refusal)):
                chunk.is_given_back = True
                return
            if chunk.why_not is not None or refusal.reason not in _TRIED_AGAIN or attempt == MAX_TRIES - 1:
                break
            await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)
        self._answer(chunk, number, request, slip, refusal)

    async def _call(self, chunk: Chunk, number: int, request: Request, slip: _Slip) -> ItemAnswer:
        """Make the call. Raises what the pipeline raises."""
        services, leased, door = self._services, chunk.leased, self._doors[chunk.leased.kind]
        resolved = await find_model(services.registry, leased.shown_model)
        principal = Principal(
            leased.account_id, leased.api_token_id, frozenset({RUN_MODELS_SCOPE}), account=chunk.terms
        )
        started_s = services.clock.monotonic_s()
        is_response = leased.kind == "response"
        request_id = leased.key[0] if is_response else f"{leased.key[0]}-{number}"
        order = Order(request_id, principal, resolved, None, started_s, is_batch=True)
        with services.admission.enter(leased.account_id) as place:

            def on_start(ending: Ending) -> None:
                place.stop = ending.stop
                chunk.endings[number] = ending
                if chunk.is_cancelled:
                    ending.abandon()

            try:
                found = await self._run_item(services, door, order, call_of(request), slip, on_start)
            finally:
                chunk.endings.pop(number, None)
            return ItemAnswer(envelope.success(msgspec.Raw(found.body)), found.usage) if is_response else found

    def _answer(self, chunk: Chunk, number: int, request: Request, slip: _Slip, found: ItemAnswer | Refusal) -> None:
        """Seal an answer, and hand it on to be written down."""
        reference = request.get("external_reference")
        if isinstance(found, Refusal):
            content = batch_answers.refused(number, reference, found)
            prompt_tokens = completion_tokens = 0
        else:
            content = batch_answers.answered(number, reference, found.body)
            prompt_tokens, completion_tokens = found.usage.prompt_tokens, found.usage.completion_tokens
        outcome = str(found.row.code) if isinstance(found, Refusal) else "finished"
        metrics.BATCH_ANSWERS.labels(chunk.leased.shown_model, outcome).inc()
        sealed = self._services.batches.sealer.seal(chunk.leased.account_id, content)
        self._on_answer(chunk, Answered(number, sealed, prompt_tokens, completion_tokens, tuple(slip.entries)))


def _is_to_wait(refusal: Refusal) -> bool:
    """Whether a request is refused for what may be otherwise in a while."""
    return refusal.row.status in (429, 503) and refusal.row.should_retry is not False
