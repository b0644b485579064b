"""A batch that is run while its client waits: all its requests, some at a time, and one answer.

Knows how to run one of them only as a function that it is given.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from engine.protocol.events import Usage
from gateway.errors import ClientLeft, Reason, Refusal, refusal_of
from gateway.http.exchange import Exchange
from gateway.jobs import batch_results as batch_answers
from gateway.jobs.batch_request import Request, RunNow, call_of
from telemetry import metrics

log = logging.getLogger(__name__)

MAX_AT_ONCE = 16


@dataclass(frozen=True)
class ItemAnswer:
    """What one request of a batch was answered: the whole body, enveloped, and what it consumed."""

    body: bytes
    usage: Usage


@dataclass(frozen=True)
class Ending:
    """How a call that is under way can be ended: its client left, or the gateway cannot wait."""

    abandon: Callable[[], None]
    stop: Callable[[], None]


@dataclass
class Group:
    """Calls that are ended together; one that begins later ends at once."""

    _calls: list[Ending] = field(default_factory=list)
    is_abandoned: bool = False
    is_stopped: bool = False

    def add(self, ending: Ending) -> None:
        self._calls.append(ending)
        if self.is_abandoned:
            ending.abandon()
        elif self.is_stopped:
            ending.stop()

    def abandon(self) -> None:
        """The client left."""
        self.is_abandoned = True
        for call in self._calls:
            call.abandon()

    def stop(self) -> None:
        """The gateway cannot wait."""
        self.is_stopped = True
        for call in self._calls:
            call.stop()


RunOne = Callable[[int, Request], Awaitable[ItemAnswer]]
"""Runs the request of a number; raises Refusal, or what `errors.refusal_of` knows."""
OnStart = Callable[[Ending], None]
"""Is given what ends a call early, once it is under way."""


async def answer(batch: RunNow, run_one: RunOne, exchange: Exchange, group: Group) -> None:
    """Run and answer. Raises ClientLeft."""
    room = asyncio.Semaphore(MAX_AT_ONCE)
    used = []

    async def item(number: int, request: Request) -> bytes:
        reference = request.get("external_reference")
        async with room:
            try:
                found = await run_one(number, call_of(request))
            except ClientLeft:
                return b""
            except Exception as error:
                return batch_answers.refused(number, reference, told(error, exchange.request_id))
        used.append(found.usage)
        return batch_answers.answered(number, reference, found.body)

    items = await asyncio.gather(*(item(number, request) for number, request in enumerate(batch.requests)))
    if group.is_abandoned:
        raise ClientLeft
    prompt_tokens = sum(usage.prompt_tokens for usage in used)
    completion_tokens = sum(usage.completion_tokens for usage in used)
    await exchange.send_json(200, batch_answers.whole(items, prompt_tokens, completion_tokens), [])


def told(error: Exception, request_id: str) -> Refusal:
    """What is said of an error; one that nobody foresaw is a defect, and logged."""
    refusal = refusal_of(error)
    if refusal is None:
        log.error("internal error", exc_info=error, extra={"request_id": request_id})
        metrics.INTERNAL_ERRORS.inc()
        refusal = Refusal(Reason.INTERNAL)
    return refusal
