"""Synchronous batches: run all requests of a batch while the client waits, and send one response.

How one request is run is a function that the caller supplies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from engine.protocol.events import Usage
from gateway.errors import ClientLeft, Reason, Refusal, refusal_of
from gateway.http.exchange import Exchange
from gateway.jobs import batch_results
from gateway.jobs.batch_request import Request, SynchronousBatch, call_body
from telemetry import metrics

log = logging.getLogger(__name__)

MAX_CONCURRENT = 16


@dataclass(frozen=True)
class ItemResponse:
    """The response to one request of a batch, without an envelope, and its usage."""

    body: bytes
    usage: Usage


class CallEnds(Protocol):
    """Ends running calls: `abandon` if the client disconnected, `stop` if the gateway shuts down."""

    def abandon(self) -> None: ...
    def stop(self) -> None: ...


@dataclass
class Group:
    """Calls that are ended together. A call added later is ended at once."""

    is_abandoned: bool = False
    is_stopped: bool = False
    _calls: list[CallEnds] = field(default_factory=list)

    def add(self, calls: CallEnds) -> None:
        self._calls.append(calls)
        if self.is_abandoned:
            calls.abandon()
        elif self.is_stopped:
            calls.stop()

    def abandon(self) -> None:
        """End all calls: the client disconnected."""
        self.is_abandoned = True
        for calls in self._calls:
            calls.abandon()

    def stop(self) -> None:
        """End all calls: the gateway shuts down."""
        self.is_stopped = True
        for calls in self._calls:
            calls.stop()


RunOne = Callable[[int, Request], Awaitable[ItemResponse]]
"""Runs the request with this number. Raises Refusal, or what `errors.refusal_of` translates."""


async def run(batch: SynchronousBatch, run_one: RunOne, exchange: Exchange, group: Group) -> None:
    """Run the requests of a batch, some at a time, and send the response. Raises ClientLeft."""
    room = asyncio.Semaphore(MAX_CONCURRENT)
    usages = []

    async def run_request(number: int, request: Request) -> bytes:
        reference = request.get("external_reference")
        async with room:
            try:
                response = await run_one(number, call_body(request))
            except ClientLeft:
                return b""
            except Exception as error:
                return batch_results.failed_item(number, reference, item_refusal(error, exchange.request_id))
        usages.append(response.usage)
        return batch_results.successful_item(number, reference, response.body)

    items = await asyncio.gather(*(run_request(number, request) for number, request in enumerate(batch.requests)))
    if group.is_abandoned:
        raise ClientLeft
    prompt_tokens = sum(usage.prompt_tokens for usage in usages)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    await exchange.send_whole(200, batch_results.whole(items, prompt_tokens, completion_tokens), [])


def item_refusal(error: Exception, request_id: str) -> Refusal:
    """Return the refusal to report for an error. An unexpected error is logged and counted."""
    refusal = refusal_of(error)
    if refusal is None:
        log.error("internal error", exc_info=error, extra={"request_id": request_id})
        metrics.INTERNAL_ERRORS.inc()
        refusal = Refusal(Reason.INTERNAL)
    return refusal
