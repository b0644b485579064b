"""The life of a Call, top to bottom. READ THIS FIRST.

Each stage adds one fact to what travels, or raises a Refusal that `app.py` renders. Only this file knows their order:
credential, account and scope, size, room, model, body (`serve`); whether it is a batch, or was answered before
(`_fulfil`); then a Call exists (`preparation.py`), finds a node, and is metered to its end (`_answer`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import structs

from catalog.registry import Resolved
from engine.protocol.tasks import TextGeneration
from gateway import authentication, echo_tenant, envelope, placement, quotas, streaming
from gateway.admission import Place
from gateway.call import Call, Door
from gateway.dispatch import Dispatch, Patience
from gateway.errors import Reason, Refusal
from gateway.http import json_body
from gateway.http.exchange import Exchange
from gateway.jobs import background_responses as background
from gateway.jobs import idempotency
from gateway.jobs import synchronous_batch as synchronous
from gateway.jobs.batch_request import Poll, Queue, RunNow, asked_of, options_in, rejects_if_busy
from gateway.jobs.response_store import KeptEvents
from gateway.jobs.synchronous_batch import Ending, Group, ItemAnswer, OnStart
from gateway.jobs.webhook import check_can_be_sent
from gateway.joined_calls import JoinedCalls, Part
from gateway.metering import Ledger, MeteredEvents
from gateway.model_names import find_model
from gateway.nodes.connections import NodeLink
from gateway.preparation import Order, Prepared, check_may_queue, may_keep, prepare
from gateway.retry_tracker import RETRY_HEADER, body_hash
from gateway.services import Services
from gateway.shapes.response import response_id_of
from tenants.credentials.principal import Principal

_AFFINITY = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_IDEMPOTENCY_KEY = re.compile(rb"[ -~]{1,255}")


async def serve(
    services: Services, door: Door, exchange: Exchange, account_id: str | None, path_model: str | None
) -> None:
    """Answer one inference request, for the credential's own account unless one is named. Raises Refusal (or what
    `errors.refusal_of` knows) while nothing has been sent."""
    settings = services.settings
    started_s = services.clock.monotonic_s()

    principal = services.places.hold(await _admitted(services, exchange, account_id), exchange)
    session = _session_of(exchange)
    exchange.check_content_length(settings.max_body_bytes)

    with services.admission.enter(principal.account_id) as place:
        if not services.ledger.has_room:
            raise Refusal(Reason.DEPENDENCY_DOWN)
        if door.model_of is not None:
            path_model = door.model_of(exchange)
        resolved = await find_model(services.registry, path_model) if path_model is not None else None
        raw = await exchange.read_body(settings.max_body_bytes, settings.body_timeout_s)
        body = door.open_body(exchange, raw)
        resolved = resolved or await find_model(services.registry, _model_in(body))
        authentication.permit_model(principal, resolved.requested_name, resolved.card.name)
        exchange.response_headers = _headers_of(exchange, resolved)
        retry = exchange.header(RETRY_HEADER)
        order = Order(
            exchange.request_id,
            principal,
            resolved,
            session,
            started_s,
            num_bytes_in=len(raw),
            body_hash=body_hash(settings.cache_secret, retry, raw),
            is_retry=retry not in (None, b"0"),
        )
        await _fulfil(services, door, exchange, order, raw, body, place)


async def _fulfil(
    services: Services,
    door: Door,
    exchange: Exchange,
    order: Order,
    raw: bytes,
    body: dict[str, Any],
    place: Place,
) -> None:
    """Answer what the body asks: a call, a batch, or how a batch stands; under an idempotency key, once. `raw` is the
    body as it came."""
    if b"rejectIfBusy" in raw or b"rejectIfBusy" in exchange.query_string:
        _refuse_if_busy(services, exchange, order.resolved, body)
    batch = _batch_in(services, door, exchange, body)
    if isinstance(batch, Poll):
        await quotas.pass_by(services, exchange, order.principal)
        await services.batches.answer(batch, order.principal.account_id, order.resolved, exchange)
        return

    def answer(order: Order) -> Awaitable[None]:
        if isinstance(batch, Queue):
            return _queue(services, exchange, order, batch)
        if isinstance(batch, RunNow):
            return _answer_together(services, door, exchange, order, batch, place)
        return _answer(services, door, exchange, order, body, place)

    key = exchange.header(b"idempotency-key")
    if key is None:
        await answer(order)
        return
    target = (exchange.path, exchange.query_string, order.resolved.requested_name.encode())
    account_id = order.principal.account_id
    asked = idempotency.Asked(account_id, key, target, raw, keeps_content=may_keep(services, order))
    await _answer_once(services, exchange, asked, order, answer)


async def echo(services: Services, _door: Door, exchange: Exchange, account_id: str | None, _model: str | None) -> None:
    """Answer a call of the test tenant with what it asks, under the same laws but for the model's."""
    assert account_id is not None, "a tenant is an account"
    settings = services.settings
    await _admitted(services, exchange, account_id)
    body = json_body.parse(await exchange.read_body(settings.max_body_bytes, settings.body_timeout_s))
    await exchange.send_json(200, echo_tenant.echo(body), [(b"cf-ai-req-id", exchange.request_id.encode())])


async def _admitted(services: Services, exchange: Exchange, account_id: str | None) -> Principal:
    """Who is calling, as one of the account that is named, or else of the credential's own, if they may run models
    there. Raises Refusal, StoreUnavailable."""
    address = services.client_address(exchange.peer)
    principal = await authentication.prove(services.verifier, exchange.headers, address)
    exchange.mark_authenticated()
    return authentication.permit(principal, account_id or principal.account_id, authentication.RUN_MODELS_SCOPE)


async def _answer_once(
    services: Services,
    exchange: Exchange,
    asked: idempotency.Asked,
    order: Order,
    answer: Callable[[Order], Awaitable[None]],
) -> None:
    """The answer that was given under the same key, or else this one, which is kept."""
    held = await services.idempotency_keys.take(asked, order.request_id)
    if isinstance(held, idempotency.Answer):
        assert held.body is not None
        await exchange.send_stored(held.headers, held.body)
        return
    exchange.request_id = held.request_id
    exchange.response_headers = _headers_of(exchange, order.resolved)
    exchange.store_response = held.keep
    try:
        await answer(structs.replace(order, request_id=held.request_id))
    finally:
        exchange.store_response = None
        await held.close()


async def _queue(services: Services, exchange: Exchange, order: Order, batch: Queue) -> None:
    """A batch for later; its answer says under which id."""
    check_may_queue(order)
    if batch.webhook is not None:
        check_can_be_sent(batch.webhook, order.resolved.card.task_slug, services.outgoing)
    await quotas.pass_by(services, exchange, order.principal)
    queued = await services.batches.submit(batch, order.request_id, order.principal, order.resolved)
    await exchange.send_json(200, queued, [])


async def _answer_together(
    services: Services, door: Door, exchange: Exchange, order: Order, batch: RunNow, place: Place
) -> None:
    """A batch's calls, and their one answer."""
    group = Group()
    place.stop = group.stop
    if exchange.store_response is None:
        exchange.on_disconnect(group.abandon)

    async def run_one(number: int, body: dict[str, Any]) -> ItemAnswer:
        own = structs.replace(order, request_id=f"{order.request_id}-{number}", num_bytes_in=0)
        return await run_item(services, door, own, body, services.ledger, group.add)

    try:
        await synchronous.answer(batch, run_one, exchange, group)
    finally:
        exchange.on_disconnect(None)


async def _answer(
    services: Services, door: Door, exchange: Exchange, order: Order, body: dict[str, Any], place: Place
) -> None:
    """One call and its answer, whole or streamed."""
    prepared = await prepare(services, door, order, body)
    asked, calls, _ = prepared
    call = calls[0]
    if asked.thread is not None and asked.thread.is_background:
        await _answer_later(services, door, exchange, order, body, prepared, place)
        return
    async with quotas.Held(services, calls, exchange.response_headers) as cost:
        with _OnTheirWay(services, calls, services.ledger, cost.begun) as (dispatch, events):
            if exchange.store_response is None:  # else the client means to come back
                exchange.on_disconnect(dispatch.abandon)
            place.stop = dispatch.stop
            shape = asked.make_shape(call)
            told: streaming.Events = events
            if asked.thread is not None and asked.thread.is_stored:
                told = _kept(services, prepared, events)
            try:
                if call.is_stream:
                    timeout_s = services.settings.client_stall_timeout_s
                    await streaming.answer_stream(told, shape, exchange, client_stall_timeout_s=timeout_s)
                else:
                    await streaming.answer_whole(told, shape, exchange)
            finally:
                exchange.on_disconnect(None)
                await events.close()
                cost.was(events.num_tokens, events.micro_neurons)


async def _answer_later(
    services: Services,
    door: Door,
    exchange: Exchange,
    order: Order,
    body: dict[str, Any],
    prepared: Prepared,
    place: Place,
) -> None:
    """A response that runs in the background: queued, and told so, or followed as a stream."""
    asked, calls, _ = prepared
    await quotas.pass_by(services, exchange, order.principal)
    record = asked.make_record(calls[0], None)
    await background.begin(services, order.principal, order.resolved, order.request_id, body, record)
    if not asked.is_stream:
        told = record.response if door.is_openai else envelope.success(msgspec.Raw(record.response))
        await exchange.send_json(200, told, [])
        return
    await background.stream(services, exchange, place, response_id_of(order.request_id), order.principal.account_id)


async def run_item(
    services: Services, door: Door, order: Order, body: dict[str, Any], ledger: Ledger, on_start: OnStart
) -> ItemAnswer:
    """One call of a batch, whole. `on_start` is given what ends it early. Raises what `serve` does."""
    prepared = await prepare(services, door, order, body)
    asked, calls, _ = prepared
    async with quotas.Held(services, calls, is_batch=order.is_batch) as cost:
        with _OnTheirWay(services, calls, ledger, cost.begun) as (dispatch, events):
            on_start(Ending(dispatch.abandon, dispatch.stop))
            told: streaming.Events = events
            if asked.thread is not None and asked.thread.is_background:
                told = _kept(services, prepared, events)
            try:
                outcome = await streaming.whole_of(told)
                return ItemAnswer(asked.make_shape(calls[0]).whole(outcome), outcome.finished.usage)
            finally:
                await events.close()
                cost.was(events.num_tokens, events.micro_neurons)


def _kept(services: Services, prepared: Prepared, events: MeteredEvents | JoinedCalls) -> KeptEvents:
    """The events of a response that is kept to be told again."""
    call = prepared.calls[0]
    keep = functools.partial(services.responses.keep, call.principal.account_id, response_id_of(call.request_id))
    return KeptEvents(events, keep, prepared.turns, functools.partial(prepared.asked.make_record, call))


class _OnTheirWay:
    """What ends the calls of one request early, and their events, counted, for `with`. An input that nodes refuse is
    remembered."""

    __slots__ = ("_joined", "_part", "_services")

    def __init__(
        self, services: Services, calls: Sequence[Call], ledger: Ledger, on_output: Callable[[], None] | None
    ) -> None:
        parts = [_part(services, call, ledger, on_output) for call in calls]
        self._services = services
        self._part = parts[0]
        self._joined: JoinedCalls | None = None
        task = calls[0].task
        if len(parts) > 1 and isinstance(task, TextGeneration):
            self._joined = JoinedCalls(parts, task.num_choices)

    def __enter__(self) -> tuple[Dispatch | JoinedCalls, MeteredEvents | JoinedCalls]:
        joined, part = self._joined, self._part
        return (part.dispatch, part.events) if joined is None else (joined, joined)

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Refusal) and error.reason is Reason.INPUT_BLOCKED:
            culprit = self._part.call if self._joined is None else self._joined.culprit
            self._services.blocked_inputs.add(culprit)


def _part(services: Services, call: Call, ledger: Ledger, on_output: Callable[[], None] | None) -> Part:
    settings = services.settings
    patience = Patience(settings.first_event_timeout_s, settings.stall_timeout_s)
    dispatch = Dispatch(call, lambda: _place(services, call), patience)
    useful = services.useful_replies
    events = MeteredEvents(call, dispatch, ledger, settings.pop, services.clock, useful, on_output)
    return Part(call, dispatch, events)


def _batch_in(services: Services, door: Door, exchange: Exchange, body: dict[str, Any]) -> Queue | RunNow | Poll | None:
    """What the request asks about batches, if anything. Raises Refusal."""
    if not door.takes_batches:
        return None
    options = options_in(exchange.query_string, body)
    return asked_of(options, body, services.settings.batches.max_requests)


def _refuse_if_busy(services: Services, exchange: Exchange, resolved: Resolved, body: dict[str, Any]) -> None:
    """Raises Refusal where the request would rather be told so than wait, and would have to wait."""
    options = options_in(exchange.query_string, body)
    if rejects_if_busy(options) and not any(node.is_free for node in services.nodes.candidates(resolved.card)):
        raise Refusal(Reason.OUT_OF_CAPACITY)


def _place(services: Services, call: Call) -> list[NodeLink]:
    """The nodes that could take the call now, best first."""
    residency = call.principal.residency
    candidates = services.nodes.candidates(call.card)
    if residency.rules:
        candidates = tuple(each for each in candidates if services.places.admits(residency, each))
    return [node.link for node in placement.order(call.affinity, services.settings.pop, candidates)]


def _session_of(exchange: Exchange) -> bytes | None:
    """The client's session affinity. Raises Refusal when it, or an idempotency key, breaks its grammar."""
    session = exchange.header(b"x-session-affinity")
    if session is not None and not _AFFINITY.fullmatch(session):
        raise Refusal(Reason.HEADER_INVALID, "x-session-affinity must be 1 to 128 of A-Z a-z 0-9 . _ : -")
    key = exchange.header(b"idempotency-key")
    if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
        raise Refusal(Reason.HEADER_INVALID, "idempotency-key must be 1 to 255 printable ASCII characters")
    return session


def _model_in(body: dict[str, Any]) -> str:
    model = body.get("model")
    if not isinstance(model, str):
        raise Refusal(Reason.INPUT_INVALID, "required properties at '/' are 'model'")
    return model


def _headers_of(exchange: Exchange, resolved: Resolved) -> list[tuple[bytes, bytes]]:
    """What every answer that reached a model carries, refusals of its input included."""
    headers = [(b"cf-ai-req-id", exchange.request_id.encode())]
    if exchange.dialect == "anthropic":
        headers.append((b"request-id", exchange.request_id.encode()))
    if resolved.alias_of is not None:
        headers.append((b"x-hearth-model", resolved.alias_of.encode()))
    return headers
