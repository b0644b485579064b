"""The life of a Call, top to bottom. READ THIS FIRST.

Each stage adds one fact to what travels, or raises a Refusal that `app.py` renders. Only this file knows their order:
credential, account and scope, size, room, model, body; then a Call exists, finds a node, and is metered to its end.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from catalog.registry import Resolved
from engine.protocol.tasks import ChatMessage, TextGeneration
from gateway import authentication, echo_tenant, envelope, placement, quotas, streaming
from gateway.admission import Place
from gateway.asked_again import RETRY_HEADER, body_hash
from gateway.batches import background
from gateway.batches import body as batch_body
from gateway.batches import synchronous as batch_now
from gateway.batches.body import Poll, Queue, RunNow
from gateway.batches.synchronous import Ending, Group, ItemAnswer
from gateway.call import Asked, Call, Door, estimated_tokens_of, opening_of
from gateway.dispatch import Dispatch, Patience
from gateway.errors import Reason, Refusal
from gateway.http import json_body
from gateway.http.exchange import Exchange
from gateway.joined_calls import JoinedCalls, Part
from gateway.kept import idempotency
from gateway.kept.responses import KeptEvents, ThreadOf
from gateway.metering import Ledger, MeteredEvents
from gateway.model_names import find_model
from gateway.nodes.connections import NodeLink
from gateway.services import Services
from gateway.shapes.response import response_id_of
from tenants.cache_namespace import fresh_namespace
from tenants.principal import Principal

_AFFINITY = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_64_BITS = (1 << 64) - 1
_IDEMPOTENCY_KEY = re.compile(rb"[ -~]{1,255}")

OnStart = Callable[[Ending], None]


async def serve(
    services: Services, door: Door, exchange: Exchange, account_id: str | None, path_model: str | None
) -> None:
    """Answer one inference request, for the credential's own account unless one is named. Raises Refusal (or what
    `errors.refusal_of` knows) while nothing has been sent."""
    settings = services.settings
    started_s = services.clock.monotonic_s()

    address = services.client_address(exchange.peer)
    principal = await authentication.prove(services.verifier, exchange.headers, address)
    exchange.trust_client()
    account_id = account_id or principal.account_id
    principal = authentication.permit(principal, account_id, authentication.RUN_MODELS_SCOPE)
    principal = services.places.hold(principal, exchange)
    session = _session_of(exchange)
    exchange.check_announced_body(settings.max_body_bytes)

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
        exchange.answer_headers = _headers_of(exchange, resolved)
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
        if b"rejectIfBusy" in raw or b"rejectIfBusy" in exchange.query_string:
            _refuse_if_busy(services, exchange, resolved, body)
        batch = _batch_in(services, door, exchange, body)
        if isinstance(batch, Poll):
            await quotas.pass_by(services, exchange, principal)
            await services.batches.answer(batch, principal.account_id, resolved, exchange)
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
        else:
            target = (exchange.path, exchange.query_string, resolved.requested_name.encode())
            asked = idempotency.Asked(account_id, key, target, raw, keeps_content=_may_keep(services, order))
            await _answer_once(services, exchange, asked, order, answer)


async def echo(services: Services, _door: Door, exchange: Exchange, account_id: str | None, _model: str | None) -> None:
    """Answer a call of the test tenant with what it asks, under the same laws but for the model's."""
    assert account_id is not None, "a tenant is an account"
    settings = services.settings
    principal = await authentication.prove(services.verifier, exchange.headers, services.client_address(exchange.peer))
    exchange.trust_client()
    authentication.permit(principal, account_id, authentication.RUN_MODELS_SCOPE)
    body = json_body.parse(await exchange.read_body(settings.max_body_bytes, settings.body_timeout_s))
    await exchange.answer(200, echo_tenant.echo(body), [(b"cf-ai-req-id", exchange.request_id.encode())])


class Order(Struct, frozen=True):
    """Who asks which model, and since when (`started_s`, of the monotonic clock): what is known before the body is
    looked at. `is_batch`: nobody waits for it. The rest is what `Call` says of the body."""

    request_id: str
    principal: Principal
    resolved: Resolved
    session: bytes | None
    started_s: float
    is_batch: bool = False
    num_bytes_in: int = 0
    body_hash: int = 0
    is_retry: bool = False


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
        await exchange.repeat(held.headers, held.body)
        return
    exchange.request_id = held.request_id
    exchange.answer_headers = _headers_of(exchange, order.resolved)
    exchange.keep = held.keep
    try:
        await answer(structs.replace(order, request_id=held.request_id))
    finally:
        exchange.keep = None
        await held.close()


async def _queue(services: Services, exchange: Exchange, order: Order, batch: Queue) -> None:
    """A batch for later; its answer says under which id."""
    _check_may_queue(order)
    _check_webhook(services, order, batch)
    await quotas.pass_by(services, exchange, order.principal)
    queued = await services.batches.submit(batch, order.request_id, order.principal, order.resolved)
    await exchange.answer(200, queued, [])


async def _answer_together(
    services: Services, door: Door, exchange: Exchange, order: Order, batch: RunNow, place: Place
) -> None:
    """A batch's calls, and their one answer."""
    group = Group()
    place.stop = group.stop
    if exchange.keep is None:
        exchange.when_client_leaves(group.abandon)

    async def run_one(number: int, body: dict[str, Any]) -> ItemAnswer:
        own = structs.replace(order, request_id=f"{order.request_id}-{number}", num_bytes_in=0)
        return await run_item(services, door, own, body, services.ledger, group.add)

    try:
        await batch_now.answer(batch, run_one, exchange, group)
    finally:
        exchange.when_client_leaves(None)


async def _answer(
    services: Services, door: Door, exchange: Exchange, order: Order, body: dict[str, Any], place: Place
) -> None:
    """One call and its answer, whole or streamed."""
    asked, calls, turns = await _prepare(services, door, order, body)
    call = calls[0]
    if asked.thread is not None and asked.thread.is_background:
        await _answer_later(services, door, exchange, order, body, asked, call, place)
        return
    async with quotas.Held(services, calls, exchange.answer_headers) as cost:
        with _OnTheirWay(services, calls, services.ledger, cost.begun) as (dispatch, events):
            if exchange.keep is None:  # else the client means to come back
                exchange.when_client_leaves(dispatch.abandon)
            place.stop = dispatch.stop
            shape = asked.make_shape(call)
            told: streaming.Events = events
            if asked.thread is not None and asked.thread.is_stored:
                told = _kept(services, order, asked, call, turns, events)
            try:
                if call.is_stream:
                    timeout_s = services.settings.client_stall_timeout_s
                    await streaming.answer_stream(told, shape, exchange, client_stall_timeout_s=timeout_s)
                else:
                    await streaming.answer_whole(told, shape, exchange)
            finally:
                exchange.when_client_leaves(None)
                await events.close()
                cost.was(events.num_tokens, events.micro_neurons)


async def _answer_later(
    services: Services,
    door: Door,
    exchange: Exchange,
    order: Order,
    body: dict[str, Any],
    asked: Asked,
    call: Call,
    place: Place,
) -> None:
    """A response that runs in the background: queued, and told so, or followed as a stream."""
    await quotas.pass_by(services, exchange, order.principal)
    record = asked.make_record(call, None)
    await background.begin(services, order.principal, order.resolved, order.request_id, body, record)
    if not asked.is_stream:
        told = record.response if door.is_openai else envelope.success(msgspec.Raw(record.response))
        await exchange.answer(200, told, [])
        return
    await background.stream(services, exchange, place, response_id_of(order.request_id), order.principal.account_id)


async def run_item(
    services: Services, door: Door, order: Order, body: dict[str, Any], ledger: Ledger, on_start: OnStart
) -> ItemAnswer:
    """One call of a batch, whole. `on_start` is given what ends it early. Raises what `serve` does."""
    asked, calls, turns = await _prepare(services, door, order, body)
    call = calls[0]
    async with quotas.Held(services, calls, is_batch=order.is_batch) as cost:
        with _OnTheirWay(services, calls, ledger, cost.begun) as (dispatch, events):
            on_start(Ending(dispatch.abandon, dispatch.stop))
            told: streaming.Events = events
            if asked.thread is not None and asked.thread.is_background:
                told = _kept(services, order, asked, call, turns, events)
            try:
                outcome = await streaming.whole_of(told)
                return ItemAnswer(asked.make_shape(call).whole(outcome), outcome.finished.usage)
            finally:
                await events.close()
                cost.was(events.num_tokens, events.micro_neurons)


def _kept(
    services: Services,
    order: Order,
    asked: Asked,
    call: Call,
    turns: tuple[ChatMessage, ...],
    events: MeteredEvents | JoinedCalls,
) -> KeptEvents:
    """The events of a response that is kept to be told again."""
    thread = ThreadOf(services.threads, order.principal.account_id, response_id_of(call.request_id))
    return KeptEvents(events, thread, turns, functools.partial(asked.make_record, call))


async def _prepare(
    services: Services, door: Door, order: Order, body: dict[str, Any]
) -> tuple[Asked, list[Call], tuple[ChatMessage, ...]]:
    """What the body asks, as one Call or several; and the turns of its thread."""
    card, account_id = order.resolved.card, order.principal.account_id
    may_keep = _may_keep(services, order)
    if not may_keep and "input" in body:
        if body.get("background") not in (None, False, "false"):
            _check_may_queue(order, "background")
        body = body | {"store": False}
    asked = door.read(card, body)
    turns: tuple[ChatMessage, ...] = ()
    if asked.thread is not None:
        if asked.thread.is_background and not order.is_batch:
            _check_may_queue(order, "background")
        asked, turns = await services.threads.go_on(asked, account_id, may_read=may_keep)
    if asked.lora is not None and isinstance(asked.task, TextGeneration):
        adapter = await services.finetunes.adapter(account_id, asked.lora, card)
        asked = structs.replace(asked, task=structs.replace(asked.task, adapter=adapter))
    calls = _calls_of(_make_call(services, order, asked), asked)
    for call in calls:
        services.blocked_inputs.check(call)
    return asked, calls, turns


def _calls_of(call: Call, asked: Asked) -> list[Call]:
    """The call, and one more for each other prompt of its request, under names of their own."""
    calls = [call]
    for number, task in enumerate(asked.others, 1):
        task = structs.replace(task, adapter=call.task.adapter) if isinstance(call.task, TextGeneration) else task
        calls.append(
            structs.replace(
                call,
                request_id=f"{call.request_id}-{number}",
                task=task,
                affinity=placement.affinity_of(call.namespace, None, opening_of(task)),
                num_estimated_tokens=estimated_tokens_of(task),
                num_bytes_in=0,
                body_hash=hash((call.body_hash, number)) & _64_BITS if call.body_hash else 0,
            )
        )
    return calls


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
    options = batch_body.options_in(exchange.query_string, body)
    return batch_body.asked_of(options, body, services.settings.batch_max_requests)


def _check_may_queue(order: Order, option: str = "queueRequest") -> None:
    """Raises Refusal where requests may not lie in a store until they are run."""
    residency = order.principal.residency
    if residency.is_zero_retention:
        raise Refusal(Reason.INPUT_INVALID, f"'{option}' is not supported: nothing of this account's calls is kept")
    if residency.rules:  # any gateway of the platform takes queued requests, wherever it stands
        raise Refusal(Reason.INPUT_INVALID, f"'{option}' is not supported: these calls are held to a region")


def _check_webhook(services: Services, order: Order, batch: Queue) -> None:
    """Raises Refusal for a webhook that could not be sent, as far as that is known now."""
    webhook = batch.webhook
    if webhook is None:
        return
    if webhook.format == "chat" and order.resolved.card.task_slug != "text-generation":
        raise Refusal(Reason.INPUT_INVALID, "'/options/webhookFormat' must be 'raw' for this model's task")
    if not services.outgoing.may_reach_host(webhook.url):
        raise Refusal(Reason.INPUT_INVALID, "'/options/webhookUrl' must be an https URL of a public host")


def _may_keep(services: Services, order: Order) -> bool:
    """Whether anything of this call's content may be stored, to be found again."""
    return order.principal.residency.may_keep(services.places.stores)


def _refuse_if_busy(services: Services, exchange: Exchange, resolved: Resolved, body: dict[str, Any]) -> None:
    """Raises Refusal where the request would rather be told so than wait, and would have to wait."""
    options = batch_body.options_in(exchange.query_string, body)
    if batch_body.rejects_if_busy(options) and not any(
        node.is_free for node in services.nodes.candidates(resolved.card)
    ):
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


def _make_call(services: Services, order: Order, asked: Asked) -> Call:
    namespace, tenant = services.cache_identity(order.principal.account_id)
    if order.principal.residency.is_zero_retention:
        namespace = fresh_namespace(namespace, order.request_id)
    return Call(
        request_id=order.request_id,
        principal=order.principal,
        card=order.resolved.card,
        shown_model=order.resolved.requested_name,
        task=asked.task,
        is_stream=asked.is_stream,
        is_batch=order.is_batch,
        num_bytes_in=order.num_bytes_in,
        body_hash=order.body_hash,
        is_retry=order.is_retry,
        namespace=namespace,
        tenant=tenant,
        affinity=placement.affinity_of(namespace, order.session, opening_of(asked.task)),
        num_estimated_tokens=estimated_tokens_of(asked.task),
        started_at=services.clock.now(),
        started_s=order.started_s,
        deadline_s=asyncio.get_running_loop().time() + services.settings.call_timeout_s,
    )


def _headers_of(exchange: Exchange, resolved: Resolved) -> list[tuple[bytes, bytes]]:
    """What every answer that reached a model carries, refusals of its input included."""
    headers = [(b"cf-ai-req-id", exchange.request_id.encode())]
    if exchange.dialect == "anthropic":
        headers.append((b"request-id", exchange.request_id.encode()))
    if resolved.alias_of is not None:
        headers.append((b"x-hearth-model", resolved.alias_of.encode()))
    return headers
