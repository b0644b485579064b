"""The pipeline of an inference request, from its head to the end of its response. Start reading here.

1. Authenticate the caller; check the account, scope and region (`_authenticate`).
2. Take a concurrency slot, read the body and find the model (`serve`).
3. Respond to one request, a batch or the poll of a batch; under an idempotency key only once (`_respond`).
4. Turn the body into calls (`preparation.py`), reserve quota, run the calls on nodes, meter them, and send their events
   to the client (`_run_request`).

Each stage adds one fact or raises a Refusal, which `app.py` renders. Only this file knows the order of the stages.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import structs

from engine.protocol.api_format import ApiFormat
from gateway import authentication, placement, quotas, streaming
from gateway.call import Endpoint
from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange
from gateway.inference.response_renderer import response_id_of
from gateway.jobs import background_responses, synchronous_batch
from gateway.jobs.batch_request import BatchPoll, QueuedBatch, SynchronousBatch, read_batch, rejects_if_busy
from gateway.jobs.idempotent_response import respond_once
from gateway.jobs.response_store import StoredResponseEvents
from gateway.jobs.synchronous_batch import CallEnds, Group, ItemResponse
from gateway.jobs.webhook import check_deliverable
from gateway.model_names import find_model, model_in
from gateway.parsing_turns import takes_long
from gateway.preparation import PreparedRequest, check_may_queue, prepare
from gateway.request_context import RequestContext
from gateway.request_headers import model_headers, read_idempotency_key, read_session
from gateway.retry_tracker import RETRY_HEADER, body_hash
from gateway.running_calls import RunningCalls, start_calls
from gateway.services import Services
from tenants.credentials.principal import Principal


async def serve(
    services: Services, endpoint: Endpoint, exchange: Exchange, account_id: str | None, path_model: str | None
) -> None:
    """Serve one inference request, for the account in the path or else the credential's own.

    Raises Refusal, or what `errors.refusal_of` translates, while nothing has been sent.
    """
    settings, started_s = services.settings, services.clock.monotonic_s()
    principal = await _authenticate(services, exchange, account_id)
    session, key = read_session(exchange), read_idempotency_key(exchange)
    exchange.check_content_encoding()
    exchange.check_content_length(settings.max_body_bytes)
    with services.admission.enter(principal.account_id) as slot:
        if not services.ledger.has_room:
            raise Refusal(Reason.DEPENDENCY_DOWN)
        if endpoint.find_model_name is not None:
            path_model = endpoint.find_model_name(exchange)
        model = await find_model(services.registry, path_model) if path_model is not None else None
        raw = await exchange.read_body(settings.max_body_bytes, settings.body_timeout_s)
        decode = functools.partial(endpoint.decode_body, exchange, raw)
        body = await services.parsing_turns.decode(principal.party, raw, decode)
        if model is None:
            default = "" if endpoint.api_format is ApiFormat.NATIVE else settings.default_model
            model = await find_model(services.registry, model_in(body, default))
        authentication.require_model(principal, model.requested_name, model.card.name)
        exchange.response_headers = model_headers(exchange, model)
        retry_header = exchange.header(RETRY_HEADER)
        context = RequestContext(
            services=services,
            endpoint=endpoint,
            request_id=exchange.request_id,
            principal=principal,
            model=model,
            slot=slot,
            ledger=services.ledger,
            started_s=started_s,
            session=session,
            num_bytes_in=len(raw),
            takes_long=takes_long(raw),
            body_hash=body_hash(settings.cache_secret, retry_header, raw),
            is_retry=retry_header not in (None, b"0"),
            traceparent=None if services.tracing is None else exchange.header(b"traceparent"),
        )
        await _respond(context, exchange, raw, body, key)


async def _authenticate(services: Services, exchange: Exchange, account_id: str | None) -> Principal:
    """Return the caller, with permission to run models in the account, in this location. Raises Refusal,
    StoreUnavailable."""
    principal = await authentication.authenticate(services, exchange.method, exchange.headers, exchange.peer)
    exchange.mark_authenticated(principal.party)
    principal = authentication.authorize(principal, account_id or principal.account_id, authentication.RUN_MODELS_SCOPE)
    return services.locations.restrict(principal, exchange)


async def _respond(
    context: RequestContext, exchange: Exchange, raw: bytes, body: dict[str, Any], key: bytes | None
) -> None:
    """Respond to one request, a batch or the poll of a batch; under an idempotency key, only once."""
    services, batch = context.services, None
    if rejects_if_busy(exchange.query_string, raw, body) and not services.nodes.has_free_node(context.model.card):
        raise Refusal(Reason.OUT_OF_CAPACITY)
    if context.endpoint.accepts_batches:
        batch = read_batch(exchange.query_string, body, services.settings.batches.max_requests)
    if isinstance(batch, BatchPoll):
        await quotas.count_request(services, exchange, context.principal)
        await services.batches.send_status(batch, context.account_id, context.model, exchange)
        return

    def respond(context: RequestContext) -> Awaitable[None]:
        if isinstance(batch, QueuedBatch):
            return _queue_batch(context, exchange, batch)
        if isinstance(batch, SynchronousBatch):
            return _run_batch(context, exchange, batch)
        return _run_request(context, exchange, body)

    await (respond(context) if key is None else respond_once(context, exchange, key, raw, respond))


async def _queue_batch(context: RequestContext, exchange: Exchange, batch: QueuedBatch) -> None:
    """Queue a batch and send its id."""
    services = context.services
    check_may_queue(context)
    if batch.webhook is not None:
        check_deliverable(batch.webhook, context.model.card.task_slug, services.webhook_client)
    await quotas.count_request(services, exchange, context.principal)
    queued = await services.batches.submit(batch, context.request_id, context.principal, context.model)
    await exchange.send_whole(200, queued, [])


async def _run_batch(context: RequestContext, exchange: Exchange, batch: SynchronousBatch) -> None:
    """Run all requests of a batch while the client waits, and send one response."""
    group = Group()
    context.slot.stop = group.stop
    if exchange.store_response is None:
        exchange.on_disconnect(group.abandon)

    async def run_one(number: int, body: dict[str, Any]) -> ItemResponse:
        item = structs.replace(context, request_id=f"{context.request_id}-{number}", num_bytes_in=0)
        return await run_item(item, body, group.add)

    try:
        await synchronous_batch.run(batch, run_one, exchange, group)
    finally:
        exchange.on_disconnect(None)


async def run_item(context: RequestContext, body: dict[str, Any], on_start: Callable[[CallEnds], None]) -> ItemResponse:
    """Run one request of a batch, unstreamed. `on_start` receives the running calls, to end them early. Raises what
    `serve` raises."""
    services, request = context.services, await prepare(context, body)
    async with quotas.QuotaReservation(services, request.calls, is_batch=context.is_batch) as reservation:
        calls = start_calls(context, request.calls, reservation.on_first_output)
        on_start(calls)
        try:
            outcome = await streaming.collect(_stored(context, request, calls) if request.is_background else calls)
            renderer = request.parsed.make_renderer(request.calls[0])
            return ItemResponse(renderer.whole_json(outcome), outcome.finished.usage)
        finally:
            await calls.close()
            reservation.set_actual(calls.num_tokens, calls.micro_neurons)


async def _run_request(context: RequestContext, exchange: Exchange, body: dict[str, Any]) -> None:
    """Run one request and send its response, whole or streamed."""
    services, request = context.services, await prepare(context, body)
    if request.is_background:
        await quotas.count_request(services, exchange, context.principal)
        await background_responses.start(context, exchange, body, request)
        return
    if authentication.has_platform_role(context.principal):
        call = request.calls[0]
        explained = placement.header_of(
            services.node_selector.explain(
                call.card,
                call.affinity,
                call.num_estimated_tokens,
                call.principal.residency,
                call.task.max_completion_tokens,
            )
        )
        exchange.response_headers.append((b"x-hearth-placement", explained.encode()))
    async with quotas.QuotaReservation(services, request.calls, exchange.response_headers) as reservation:
        calls = start_calls(context, request.calls, reservation.on_first_output)
        if exchange.store_response is None:  # with an idempotency key, a disconnect does not cancel the call
            exchange.on_disconnect(calls.abandon)
        context.slot.stop = calls.stop
        try:
            await _send(context, exchange, request, calls)
        finally:
            exchange.on_disconnect(None)
            await calls.close()
            reservation.set_actual(calls.num_tokens, calls.micro_neurons)


async def _send(context: RequestContext, exchange: Exchange, request: PreparedRequest, calls: RunningCalls) -> None:
    """Send the response to the client as the calls produce it."""
    renderer = request.parsed.make_renderer(request.calls[0])
    events = _stored(context, request, calls) if request.is_stored else calls
    if request.parsed.is_stream:
        await streaming.send_stream(events, renderer, exchange)
    else:
        is_enveloped = context.endpoint.api_format is ApiFormat.NATIVE and not exchange.is_binding
        await streaming.send_whole(events, renderer, exchange, is_enveloped=is_enveloped)


def _stored(context: RequestContext, request: PreparedRequest, calls: RunningCalls) -> StoredResponseEvents:
    """Return the events of the calls, which store the response before the last event."""
    call = request.calls[0]
    store = functools.partial(
        context.services.stored_responses.store, context.account_id, response_id_of(call.request_id)
    )
    return StoredResponseEvents(calls, store, request.messages, functools.partial(request.parsed.make_record, call))
