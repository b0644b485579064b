"""Respond to a request with an idempotency key: once, and from the store afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import structs

from gateway.http.exchange import Exchange
from gateway.jobs.idempotency import KeyedRequest, StoredResponse
from gateway.request_context import RequestContext
from gateway.request_headers import model_headers


async def respond_once(
    context: RequestContext,
    exchange: Exchange,
    key: bytes,
    raw: bytes,
    respond: Callable[[RequestContext], Awaitable[None]],
) -> None:
    """Send the stored response to the same request under the same key, or else call `respond` and store its response.

    `raw` is the request body. Raises Refusal, StoreUnavailable, and what `respond` raises.
    """
    target = (exchange.path, exchange.query_string, context.model.requested_name.encode())
    request = KeyedRequest(context.account_id, key, target, raw, may_store_content=context.may_store_content)
    claim = await context.services.idempotency_keys.claim(request, context.request_id)
    if isinstance(claim, StoredResponse):
        assert claim.body is not None
        await exchange.send_stored(claim.headers, claim.body)
        return
    exchange.request_id = claim.request_id
    exchange.response_headers = model_headers(exchange, context.model)
    exchange.store_response = claim.store
    try:
        await respond(structs.replace(context, request_id=claim.request_id))
    finally:
        exchange.store_response = None
        await claim.close()
