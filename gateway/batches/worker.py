"""Runs queued batches: takes chunks as there is room, calls as any other call is made, and writes answers down.

An answer goes into the database together with its usage entry, for several requests at once; until then the request
counts as not run, whoever dies. What finds no node now is given back to the queue; what fails for another reason is
tried a few times, and then that is its answer. Knows the queue's rows and how to run one call, not how models answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import msgspec

from gateway import envelope
from gateway.authentication import RUN_MODELS_SCOPE
from gateway.batches import answers as batch_answers
from gateway.batches.body import Request, call_of
from gateway.batches.queue import DOORBELL
from gateway.batches.synchronous import Ending, ItemAnswer, OnStart, told
from gateway.call import Door
from gateway.errors import Reason, Refusal
from gateway.metering import Ledger
from gateway.model_names import find_model
from gateway.preparation import Order
from gateway.services import Services, keep_running
from gateway.webhooks.sender import WebhookSender
from storage.columns import uuid7
from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from telemetry import metrics
from tenants import accounts, batches
from tenants.batches import Answered, ChunkKey, Kind, Leased
from tenants.principal import AccountTerms, Principal
from tenants.usage import UsageEntry

log = logging.getLogger(__name__)

MAX_TRIES = 3  # of a request that fails without being at fault itself
MAX_LOSSES = 10  # owners of a chunk, before what is left of it is taken to be the cause
LOOK_INTERVAL_S = 2.0  # without a doorbell
CANCEL_INTERVAL_S = 0.2
GATHER_S = 0.05  # answers for one transaction
EXPIRE_INTERVAL_S = 60.0
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0
_DOORBELL_WAIT_S = 5.0
_CLOSE_TIMEOUT_S = 5.0

_decode = msgspec.json.Decoder(list[Request]).decode
_TRIED_AGAIN = frozenset({Reason.ABORTED, Reason.TIMEOUT, Reason.INTERNAL})


@contextlib.asynccontextmanager
async def working(services: Services, doors: Mapping[Kind, Door], run_item: RunItem) -> AsyncIterator[None]:
    """Queued batches are run within the block: `run_item` makes a call, `doors` say for each kind of batch how its
    requests are read. At its end what was answered is written, the rest given back."""
    if services.settings.batch_max_calls == 0:
        yield
        return
    worker = BatchWorker(services, doors, run_item)
    jobs = [asyncio.create_task(keep_running(loop), name=loop.__qualname__) for loop in worker.loops]
    try:
        yield
    finally:
        await worker.close(jobs)


class RunItem(Protocol):
    """Makes one call of a batch, to its end. `ledger` is given its usage entry, `on_start` what ends it early. Raises
    Refusal, or what `errors.refusal_of` knows."""

    def __call__(
        self, services: Services, door: Door, order: Order, body: Request, ledger: Ledger, on_start: OnStart, /
    ) -> Awaitable[ItemAnswer]: ...


class _HeldSince(Exception):
    """The account's calls are held to a region, or leave nothing, since the batch was queued: it is not opened."""


class _Slip:
    """Holds a request's usage entries, one for each prompt, until they are written together with the answer."""

    def __init__(self) -> None:
        self.entries: list[UsageEntry] = []

    async def record(self, entry: UsageEntry) -> None:
        self.entries.append(entry)


@dataclass(eq=False)
class _Chunk:
    """A chunk that this worker has. `unwritten` are the requests whose answers are not in the database yet."""

    leased: Leased
    terms: AccountTerms  # of its account, when it was taken
    requests: list[Request]
    unwritten: set[int]
    jobs: set[asyncio.Task[None]] = field(default_factory=set)
    endings: dict[int, Ending] = field(default_factory=dict)  # of calls under way, by their numbers
    is_given_back: bool = False  # once nothing of it runs any more
    is_cancelled: bool = False

    @property
    def key(self) -> ChunkKey:
        return self.leased.key


class BatchWorker:
    """One gateway's. `loops` run beside each other until `close`."""

    def __init__(self, services: Services, doors: Mapping[Kind, Door], run_item: RunItem) -> None:
        self._services = services
        self._doors = doors
        self._run_item = run_item
        self._owner = uuid7()
        self._max_calls = services.settings.batch_max_calls
        self._room = asyncio.Semaphore(self._max_calls)
        self._chunks: dict[ChunkKey, _Chunk] = {}
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
        leased = await batches.take(services.database, self._owner, now, services.settings.batch_lease_s)
        if leased is None:
            return False
        if leased.key in self._chunks:  # this process stood still for longer than its lease, and works on it already
            return True
        numbers = range(leased.key[1], leased.key[1] + leased.num_requests)
        residency, terms = await accounts.standing_of_calls(services.database, leased.account_id, leased.api_token_id)
        why: Refusal | None
        requests: list[Request] = [{} for _ in numbers]
        try:
            if residency.rules or residency.is_zero_retention:
                raise _HeldSince
            requests = _decode(services.batches.opened(leased.account_id, leased.requests))
        except (ValueError, msgspec.MsgspecError):
            log.error("queued requests cannot be read: has the cache secret changed?", extra={"batch": leased.key[0]})
            why = Refusal(Reason.INTERNAL)
        except _HeldSince:
            why = Refusal(Reason.ABORTED)
        else:
            why = self._why_not(leased)
        chunk = _Chunk(leased, terms, requests, set(numbers) - leased.answered)
        self._chunks[leased.key] = chunk
        for number in sorted(chunk.unwritten):
            job = asyncio.create_task(self._run(chunk, number, why))
            chunk.jobs.add(job)
            job.add_done_callback(chunk.jobs.discard)
            job.add_done_callback(lambda _job: self._look_at(chunk))
        return True

    def _why_not(self, leased: Leased) -> Refusal | None:
        """Why the requests of a chunk are not run any more, or None."""
        waited_s = (self._services.clock.now() - leased.created_at).total_seconds()
        if leased.is_cancelled:
            return Refusal(Reason.ABORTED)
        if leased.is_account_blocked:
            return Refusal(Reason.ACCOUNT_BLOCKED)
        if waited_s > self._services.settings.batch_deadline_s:
            return Refusal(Reason.TIMEOUT)
        return Refusal(Reason.ABORTED) if leased.num_losses >= MAX_LOSSES else None

    async def _run(self, chunk: _Chunk, number: int, why_not: Refusal | None) -> None:
        """Answer one request of a chunk, unless it has to wait for a better time."""
        request = chunk.requests[number - chunk.key[1]]
        slip = _Slip()
        for attempt in range(MAX_TRIES):
            async with self._room:
                if self._is_leaving or chunk.is_given_back:
                    chunk.is_given_back = True
                    return
                slip = _Slip()
                try:
                    if why_not is not None:
                        raise why_not
                    with metrics.BATCH_CALLS.track_inprogress():
                        found = await self._call(chunk, number, request, slip)
                except Exception as error:
                    refusal = Refusal(Reason.ABORTED) if chunk.is_cancelled else told(error, f"{chunk.key[0]}-{number}")
                else:
                    self._answer(chunk, number, request, slip, found)
                    return
            if chunk.is_cancelled:
                break
            if why_not is None and (self._is_leaving or _is_to_wait(refusal)):
                chunk.is_given_back = True
                return
            if why_not is not None or refusal.reason not in _TRIED_AGAIN or attempt == MAX_TRIES - 1:
                break
            await asyncio.sleep(_FIRST_PAUSE_S * 2**attempt)
        self._answer(chunk, number, request, slip, refusal)

    async def _call(self, chunk: _Chunk, number: int, request: Request, slip: _Slip) -> ItemAnswer:
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

    def _answer(self, chunk: _Chunk, number: int, request: Request, slip: _Slip, found: ItemAnswer | Refusal) -> None:
        """Have an answer written down."""
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
        answered = Answered(number, sealed, prompt_tokens, completion_tokens, tuple(slip.entries))
        self._outbox.setdefault(chunk.key, []).append(answered)
        self._has_answers.set()

    def _look_at(self, chunk: _Chunk) -> None:
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
        settings, now = self._services.settings, self._services.clock.now()
        lost = await batches.answer(
            self._services.database,
            self._owner,
            outbox,
            now,
            lease_s=settings.batch_lease_s,
            ttl_s=settings.batch_ttl_s,
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
        services, lease_s = self._services, self._services.settings.batch_lease_s
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
                    chunk = running[batch_id]
                    chunk.is_cancelled = True
                    for ending in list(chunk.endings.values()):
                        ending.abandon()

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


def _is_to_wait(refusal: Refusal) -> bool:
    """Whether a request is refused for what may be otherwise in a while."""
    return refusal.row.status in (429, 503) and refusal.row.should_retry is not False
