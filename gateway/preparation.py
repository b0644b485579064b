"""Turn a request body into calls: parse it, load the earlier response that it continues and its fine-tune, and make
one Call for each prompt.

Checks what the account and the model allow. Does not run calls and knows no HTTP.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any, NamedTuple

from msgspec import structs

from engine.protocol.messages import ChatMessage
from gateway import placement
from gateway.call import Call, ParsedRequest
from gateway.errors import Reason, Refusal
from gateway.request_context import RequestContext
from tenants.cache_namespace import fresh_namespace

_64_BITS = (1 << 64) - 1


class PreparedRequest(NamedTuple):
    """A parsed request, its calls (one for each prompt), and the conversation before the response, for requests that
    are stored."""

    parsed: ParsedRequest
    calls: list[Call]
    messages: tuple[ChatMessage, ...]

    @property
    def is_background(self) -> bool:
        request = self.parsed.response_request
        return request is not None and request.is_background

    @property
    def is_stored(self) -> bool:
        request = self.parsed.response_request
        return request is not None and request.is_stored


async def prepare(context: RequestContext, body: dict[str, Any]) -> PreparedRequest:
    """Parse a body and make its calls. Raises Refusal, SchemaViolation, BadInput, StoreUnavailable."""
    services, card = context.services, context.model.card
    may_store = context.may_store_content
    if not may_store and "input" in body:
        if body.get("background") not in (None, False, "false"):
            check_may_queue(context, "background")
        body = body | {"store": False}
    parse = functools.partial(context.endpoint.parse, card, body)
    parsed = await services.parsing_turns.parse(context.principal.party, parse) if context.takes_long else parse()
    parsed = await _decode_media(context, parsed)
    messages: tuple[ChatMessage, ...] = ()
    if parsed.response_request is not None:
        if parsed.response_request.is_background and not context.is_batch:
            check_may_queue(context, "background")
        parsed, messages = await services.stored_responses.resume(parsed, context.account_id, may_read=may_store)
    if parsed.lora is not None:
        adapter = await services.finetunes.adapter(context.account_id, parsed.lora, card)
        others = tuple(structs.replace(task, adapter=adapter) for task in parsed.more_tasks)
        parsed = structs.replace(parsed, task=structs.replace(parsed.task, adapter=adapter), more_tasks=others)
    calls = make_calls(context, parsed)
    for call in calls:
        services.blocked_inputs.check(call)
    return PreparedRequest(parsed, calls, messages)


async def _decode_media(context: RequestContext, parsed: ParsedRequest) -> ParsedRequest:
    """Return the request with its media files fetched and decoded, so that nodes parse no files of clients. Raises
    Refusal."""
    files = list(parsed.task.media_files())
    if not files:
        return parsed
    documents, account_id = context.services.documents, context.account_id
    fetch = context.services.image_urls.fetcher(account_id)
    fetched = [await fetch(file) if file.url else file for file in files]  # all first: decoding may wait for its turn
    decoded = [await documents.decode(account_id, file) for file in fetched]
    return structs.replace(parsed, task=parsed.task.with_media(iter(decoded)))


def check_may_queue(context: RequestContext, option: str = "queueRequest") -> None:
    """Raise Refusal if the account's requests must not wait in a store before they run."""
    residency = context.principal.residency
    if residency.is_zero_retention:
        raise Refusal(Reason.INPUT_INVALID, f"'{option}' is not supported: this account has zero data retention")
    if residency.rules:  # any gateway of the platform may run a queued request, in any location
        raise Refusal(Reason.INPUT_INVALID, f"'{option}' is not supported: this account's calls are bound to a region")


def make_calls(context: RequestContext, parsed: ParsedRequest) -> list[Call]:
    """Return one call for each prompt; each after the first has an id with a number."""
    services, task = context.services, parsed.task
    namespace, tenant = services.cache_identity(context.account_id)
    if context.principal.residency.is_zero_retention:
        namespace = fresh_namespace(namespace, context.request_id)
    first = Call(
        request_id=context.request_id,
        principal=context.principal,
        card=context.model.card,
        requested_model=context.model.requested_name,
        task=task,
        is_stream=parsed.is_stream,
        is_batch=context.is_batch,
        num_bytes_in=context.num_bytes_in,
        body_hash=context.body_hash,
        is_retry=context.is_retry,
        namespace=namespace,
        tenant=tenant,
        affinity=placement.affinity_key(namespace, context.session, task.opening_text),
        num_estimated_tokens=task.num_estimated_tokens,
        started_at=services.clock.now(),
        started_s=context.started_s,
        deadline_s=asyncio.get_running_loop().time() + services.settings.call_timeout_s,
    )
    others = [
        structs.replace(
            first,
            request_id=f"{first.request_id}-{number}",
            task=other,
            affinity=placement.affinity_key(namespace, None, other.opening_text),
            num_estimated_tokens=other.num_estimated_tokens,
            num_bytes_in=0,
            body_hash=hash((first.body_hash, number)) & _64_BITS if first.body_hash else 0,
        )
        for number, other in enumerate(parsed.more_tasks, 1)
    ]
    return [first, *others]
