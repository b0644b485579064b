"""OpenAI responses that run in the background: queued as a batch of one, asked for, followed, and cancelled.

What is kept of one says `queued` until it is finished; how it stands meanwhile, and why it failed, its batch says. The
answer of a worker replaces what is kept. Knows no routes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from catalog.registry import Resolved
from gateway.admission import Place
from gateway.call import Record
from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange
from gateway.jobs.batch_request import Queue, Request
from gateway.services import Services
from gateway.shapes import response_replay
from gateway.shapes.response import error_event, request_id_of, response_id_of
from tenants.credentials.principal import Principal
from tenants.jobs import batches
from tenants.jobs.batches import BatchState

POLL_S = 0.2
_ERRORS = {3040: "rate_limit_exceeded", 971: "rate_limit_exceeded", 3036: "rate_limit_exceeded"}
_OF_INPUT = range(5000, 6000)  # codes that say that the request is at fault

_decode = msgspec.json.Decoder(dict[str, Any]).decode


async def begin(
    services: Services, principal: Principal, resolved: Resolved, request_id: str, body: Request, record: Record
) -> None:
    """Queue a response, of which `record` says so. Raises Refusal, StoreError."""
    account_id, response_id = principal.account_id, response_id_of(request_id)
    if not services.responses.keeps_any:
        raise Refusal(Reason.INPUT_INVALID, "'/background' is not supported: responses are not kept here")
    await services.responses.begin(account_id, response_id, record, services.settings.batches.deadline_s)
    try:
        await services.batches.submit(Queue([body]), request_id, principal, resolved, "response")
    except BaseException:
        await services.responses.forget(account_id, response_id)
        raise


async def now(services: Services, account_id: str, response_id: str, record: Record) -> dict[str, Any]:
    """A response that is kept, as it stands. Raises Refusal for one whose end is not kept, StoreUnavailable."""
    response = _decode(record.response)
    if not response["background"]:
        return response
    batch_id = request_id_of(response_id)
    state = await batches.find(services.database, account_id, batch_id, services.clock.now(), "response")
    if state is None:
        if response["status"] == "queued":
            raise Refusal(Reason.RESPONSE_UNKNOWN)
        return response
    if state.is_cancelled:
        return response | {"status": "cancelled", "output": [], "usage": None, "incomplete_details": None}
    if response["status"] != "queued":
        return response
    if not state.is_finished:
        return response | {"status": "in_progress"} if state.is_started else response
    return await _answered(services, account_id, batch_id, state, response)


async def _answered(
    services: Services, account_id: str, batch_id: str, state: BatchState, response: dict[str, Any]
) -> dict[str, Any]:
    """What a worker wrote down of a response that is kept no other way: why it failed, or one that is too long."""
    sealed = await batches.answers(services.database, account_id, batch_id, 0, state.num_requests)
    if not sealed:
        raise Refusal(Reason.RESPONSE_UNKNOWN)
    try:
        item = _decode(services.batches.opened(account_id, sealed[0]))
    except (ValueError, msgspec.MsgspecError):
        raise Refusal(Reason.RESPONSE_UNKNOWN) from None
    if item["success"]:
        result: dict[str, Any] = item["result"]
        return result
    (error,) = item["errors"]
    kind = "invalid_prompt" if error["code"] in _OF_INPUT else _ERRORS.get(error["code"], "server_error")
    return response | {"status": "failed", "error": {"code": kind, "message": error["message"]}}


async def cancel(services: Services, account_id: str, response_id: str) -> None:
    """Ask for the end of a response that is not finished; its worker hears of it within moments. Raises
    StoreUnavailable."""
    batch_id = request_id_of(response_id)
    await batches.cancel(services.database, account_id, batch_id, services.clock.now())
    await services.batches.ring(batch_id)


def is_over(response: dict[str, Any]) -> bool:
    """Whether nothing of it will change."""
    return response["status"] not in ("queued", "in_progress")


async def stream(
    services: Services, exchange: Exchange, place: Place, response_id: str, account_id: str, after: int = -1
) -> None:
    """Answer with the events of a response that is kept, as it comes to have them. `place` is the request's own. Raises
    Refusal and StoreUnavailable before anything is sent."""

    async def look() -> dict[str, Any]:
        record = await services.responses.find(account_id, response_id)
        if record is None:
            raise Refusal(Reason.RESPONSE_UNKNOWN)
        return await now(services, account_id, response_id, record)

    left = asyncio.Event()
    until_s = asyncio.get_running_loop().time() + services.settings.call_timeout_s
    await look()
    exchange.error_frame = error_event
    exchange.on_disconnect(left.set)
    place.stop = left.set
    try:
        await exchange.start_stream(services.settings.client_stall_timeout_s)
        async for frames in follow(look, after=after, until_s=until_s, left=left):
            await exchange.write(frames)
        if left.is_set():
            raise Refusal(Reason.ABORTED)
        await exchange.end_stream(is_whole=True)
    finally:
        exchange.on_disconnect(None)


async def follow(
    look: Callable[[], Awaitable[dict[str, Any]]], *, after: int, until_s: float, left: asyncio.Event
) -> AsyncIterator[bytes]:
    """The events of a response with numbers above `after`, as it comes to have them. `look` gives the response as it
    stands. Ends early, with nothing more, when `left` is set. Raises Refusal when it takes longer than until the loop's
    `until_s`."""
    loop = asyncio.get_running_loop()
    response = await look()
    is_told = False
    while not left.is_set():
        events = []
        if not is_told:
            events, is_told = response_replay.opening(response), True
        if is_over(response):
            events += response_replay.rest(response)
        frames = [response_replay.frame(event) for event in events if event["sequence_number"] > after]
        if frames:
            yield b"".join(frames)
        if is_over(response):
            return
        if loop.time() > until_s:
            raise Refusal(Reason.TIMEOUT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await left.wait()
        response = await look()
