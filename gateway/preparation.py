"""A body becomes Calls: what it asks, the response it goes on from, its finetune, and a Call for each prompt.

An `Order` is what is known before the body is looked at. Knows what accounts and models allow, not how calls are run;
no HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from msgspec import Struct, structs

from catalog.registry import Resolved
from engine.protocol.messages import ChatMessage
from engine.protocol.tasks.text_generation import TextGeneration
from gateway import placement
from gateway.call import Asked, Call, Door, estimated_tokens_of, opening_of
from gateway.errors import Reason, Refusal
from gateway.services import Services
from tenants.cache_namespace import fresh_namespace
from tenants.credentials.principal import Principal

_64_BITS = (1 << 64) - 1


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


class Prepared(NamedTuple):
    """What a body asks, the Calls that it comes to, one for each prompt, and the turns that its answer joins."""

    asked: Asked
    calls: list[Call]
    turns: tuple[ChatMessage, ...]


async def prepare(services: Services, door: Door, order: Order, body: dict[str, Any]) -> Prepared:
    """Raises Refusal, what `door.read` raises, and StoreUnavailable."""
    card, account_id = order.resolved.card, order.principal.account_id
    is_kept = may_keep(services, order)
    if not is_kept and "input" in body:
        if body.get("background") not in (None, False, "false"):
            check_may_queue(order, "background")
        body = body | {"store": False}
    asked = door.read(card, body)
    turns: tuple[ChatMessage, ...] = ()
    if asked.thread is not None:
        if asked.thread.is_background and not order.is_batch:
            check_may_queue(order, "background")
        asked, turns = await services.responses.go_on(asked, account_id, may_read=is_kept)
    if asked.lora is not None and isinstance(asked.task, TextGeneration):
        adapter = await services.finetunes.adapter(account_id, asked.lora, card)
        asked = structs.replace(asked, task=structs.replace(asked.task, adapter=adapter))
    calls = _calls_of(_call_of(services, order, asked), asked)
    for call in calls:
        services.blocked_inputs.check(call)
    return Prepared(asked, calls, turns)


def may_keep(services: Services, order: Order) -> bool:
    """Whether anything of this call's content may be stored, to be found again."""
    return order.principal.residency.may_keep(services.places.stores)


def check_may_queue(order: Order, option: str = "queueRequest") -> None:
    """Raises Refusal where requests may not lie in a store until they are run."""
    residency = order.principal.residency
    if residency.is_zero_retention:
        raise Refusal(Reason.INPUT_INVALID, f"'{option}' is not supported: nothing of this account's calls is kept")
    if residency.rules:  # any gateway of the platform takes queued requests, wherever it stands
        raise Refusal(Reason.INPUT_INVALID, f"'{option}' is not supported: these calls are held to a region")


def _call_of(services: Services, order: Order, asked: Asked) -> Call:
    """The Call of the first prompt."""
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
