"""Background responses: queued as a batch of one, retrieved, streamed and cancelled.

A stored background response has status `queued` until it has finished; its batch has the current status and the reason
of a failure. The worker's result replaces the stored response. Knows no routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from engine.protocol.api_format import ApiFormat
from gateway import envelope
from gateway.admission import ConcurrencySlot
from gateway.call import StoredRecord
from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange
from gateway.inference import response_replay
from gateway.inference.response_renderer import error_event, request_id_of, response_id_of
from gateway.jobs.batch_request import QueuedBatch, Request
from gateway.preparation import PreparedRequest
from gateway.request_context import RequestContext
from gateway.services import Services
from storage.waiters import wait_for_event
from tenants.jobs import batches
from tenants.jobs.batches import BatchState

POLL_INTERVAL_S = 0.2
_ERROR_CODES = {3040: "rate_limit_exceeded", 971: "rate_limit_exceeded", 3036: "rate_limit_exceeded"}
_INPUT_ERRORS = range(5000, 6000)

_decode = msgspec.json.Decoder(dict[str, Any]).decode


async def start(context: RequestContext, exchange: Exchange, body: Request, request: PreparedRequest) -> None:
    """Queue a background response, and send it with status `queued`, or stream it if the request asks for a stream.

    Raises Refusal, StoreError.
    """
    services, response_id = context.services, response_id_of(context.request_id)
    record = request.parsed.make_record(request.calls[0], None)
    await _queue(context, response_id, body, record)
    if request.parsed.is_stream:
        await stream(services, exchange, context.slot, response_id, context.account_id)
        return
    is_enveloped = context.endpoint.api_format is ApiFormat.NATIVE
    await exchange.send_whole(200, envelope.wrap(record.response) if is_enveloped else record.response, [])


async def _queue(context: RequestContext, response_id: str, body: Request, record: StoredRecord) -> None:
    services, account_id = context.services, context.account_id
    if not services.stored_responses.is_enabled:
        raise Refusal(Reason.INPUT_INVALID, "'/background' is not supported: this platform does not store responses")
    deadline_s = services.settings.batches.deadline_s
    await services.stored_responses.store_queued(account_id, response_id, record, deadline_s)
    try:
        batch = QueuedBatch([body])
        await services.batches.submit(batch, context.request_id, context.principal, context.model, "response")
    except BaseException:
        await services.stored_responses.delete(account_id, response_id)
        raise


async def current(services: Services, account_id: str, response_id: str, record: StoredRecord) -> dict[str, Any]:
    """Return a stored response with its current status. Raises Refusal if its result has expired, StoreUnavailable."""
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
    return await _result(services, account_id, batch_id, state, response)


async def _result(
    services: Services, account_id: str, batch_id: str, state: BatchState, response: dict[str, Any]
) -> dict[str, Any]:
    """Return the response from the worker's result. Used if it failed, or is too long for the response store."""
    sealed = await batches.read_results(services.database, account_id, batch_id, 0, state.num_requests)
    if not sealed:
        raise Refusal(Reason.RESPONSE_UNKNOWN)
    try:
        item = _decode(services.batches.decrypt(account_id, sealed[0]))
    except (ValueError, msgspec.MsgspecError):
        raise Refusal(Reason.RESPONSE_UNKNOWN) from None
    if item["success"]:
        result: dict[str, Any] = item["result"]
        return result
    (error,) = item["errors"]
    kind = "invalid_prompt" if error["code"] in _INPUT_ERRORS else _ERROR_CODES.get(error["code"], "server_error")
    return response | {"status": "failed", "error": {"code": kind, "message": error["message"]}}


async def cancel(services: Services, account_id: str, response_id: str) -> None:
    """Cancel a response that is not finished; its worker stops within CANCEL_INTERVAL_S. Raises StoreUnavailable."""
    batch_id = request_id_of(response_id)
    await batches.cancel(services.database, account_id, batch_id, services.clock.now())
    await services.batches.wake_workers(batch_id)


def is_final(response: dict[str, Any]) -> bool:
    """Return True if the response will not change any more."""
    return response["status"] not in ("queued", "in_progress")


async def stream(
    services: Services, exchange: Exchange, slot: ConcurrencySlot, response_id: str, account_id: str, after: int = -1
) -> None:
    """Stream the events of a stored response as they come, after sequence number `after`. `slot` is that of this
    request. Raises Refusal and StoreUnavailable before anything is sent."""

    async def read() -> dict[str, Any]:
        record = await services.stored_responses.find(account_id, response_id)
        if record is None:
            raise Refusal(Reason.RESPONSE_UNKNOWN)
        return await current(services, account_id, response_id, record)

    is_ended = asyncio.Event()  # the client disconnected, or the gateway shuts down
    until_s = asyncio.get_running_loop().time() + services.settings.call_timeout_s
    await read()
    exchange.error_frame = error_event
    exchange.on_disconnect(is_ended.set)
    slot.stop = is_ended.set
    try:
        await exchange.start_stream()
        async for frames in follow(read, after=after, until_s=until_s, is_ended=is_ended):
            await exchange.write(frames)
        if is_ended.is_set():
            raise Refusal(Reason.ABORTED)
        await exchange.end_stream(is_whole=True)
    finally:
        exchange.on_disconnect(None)


async def follow(
    read: Callable[[], Awaitable[dict[str, Any]]], *, after: int, until_s: float, is_ended: asyncio.Event
) -> AsyncIterator[bytes]:
    """Yield the frames of a response's events with numbers above `after`, as they come. `read` returns the current
    response. Ends when `is_ended` is set. Raises Refusal at the event-loop time `until_s`."""
    loop = asyncio.get_running_loop()
    response = await read()
    has_opened = False
    while not is_ended.is_set():
        events = []
        if not has_opened:
            events, has_opened = response_replay.opening(response), True
        if is_final(response):
            events += response_replay.remaining(response)
        frames = [response_replay.frame(event) for event in events if event["sequence_number"] > after]
        if frames:
            yield b"".join(frames)
        if is_final(response):
            return
        if loop.time() > until_s:
            raise Refusal(Reason.TIMEOUT)
        await wait_for_event(is_ended, POLL_INTERVAL_S)
        response = await read()
