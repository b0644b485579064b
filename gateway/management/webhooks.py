"""`A/ai/webhooks`: the key that signs an account's webhooks, and the deliveries of webhooks.

The key's secret is only in the response that created it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.jobs.webhook import Webhook, secret_text
from gateway.management.endpoint import (
    ManagementRequest,
    PageQuery,
    existing,
    format_time,
    respond,
    takes_body,
    takes_query,
)
from gateway.openapi.operation import describe
from gateway.services import Services
from tenants.jobs import webhook_keys, webhooks
from tenants.jobs.webhook_keys import WebhookKey
from tenants.jobs.webhooks import Delivery, DeliveryState

DEFAULT_OVERLAP_S, MAX_OVERLAP_S = 86_400, 7 * 86_400


class WebhookKeyBody(Struct, frozen=True):
    """The body that replaces a webhook key. For `overlap_s` seconds the previous key also signs."""

    overlap_s: Annotated[float, Meta(ge=0, le=MAX_OVERLAP_S)] = DEFAULT_OVERLAP_S


class WebhookDelivery(Struct, frozen=True, kw_only=True):
    """The delivery of a batch's results. `host` is that of the URL. `outcome` is the result of the last attempt, null
    before the first. `next_attempt_at` is null when no further attempt is made."""

    batch_id: str
    host: str | None
    state: DeliveryState
    num_attempts: int
    outcome: str | None
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None


@describe(result=list[WebhookDelivery], is_paged=True)
@takes_query(PageQuery)
async def list_deliveries(services: Services, request: ManagementRequest, query: PageQuery) -> Response:
    """List the deliveries of batches that are not expired, newest first."""
    offset, now = (query.number - 1) * query.size, services.clock.now()
    account_id = request.account_id
    found, total = await webhooks.list_deliveries(services.database, account_id, now, query.size, offset=offset)
    return query.respond([_render_delivery(services, account_id, each) for each in found], total)


def _render_delivery(services: Services, account_id: str, delivery: Delivery) -> WebhookDelivery:
    try:
        target = msgspec.json.decode(services.batches.decrypt(account_id, delivery.target), type=Webhook)
        host = urlsplit(target.url).hostname
    except (ValueError, msgspec.MsgspecError):
        host = None  # HEARTH_CACHE_SECRET has changed
    return WebhookDelivery(
        batch_id=delivery.batch_id,
        host=host,
        state=delivery.state,
        num_attempts=delivery.num_tries,
        outcome=delivery.outcome,
        last_attempt_at=delivery.tried_at,
        next_attempt_at=delivery.next_at if delivery.finished_at is not None else None,
    )


class WebhookKeyResult(Struct, frozen=True):
    """A key that signs webhooks. `secret` is only in the response that created the key."""

    id: str
    created_on: str
    previous_signs_until: str | None
    secret: str | UnsetType = UNSET


@describe(result=WebhookKeyResult)
async def get(services: Services, request: ManagementRequest) -> Response:
    """Get the current key without its secret, and when the previous key stops signing."""
    account_id = request.account_id
    key, *previous = existing(await webhook_keys.signing(services.database, account_id, services.clock.now()) or None)
    return respond(_render_key(key, previous))


@describe(result=WebhookKeyResult)
@takes_body(WebhookKeyBody, is_optional=True)
async def replace(services: Services, request: ManagementRequest, body: WebhookKeyBody) -> Response:
    """Create a key and return its secret, with which receivers verify signatures. The previous key continues to sign
    beside the new one for `overlap_s` seconds."""
    key = await webhook_keys.replace(
        services.database,
        request.account_id,
        services.clock.now(),
        overlap_s=body.overlap_s,
        actor=request.principal.api_token_id,
    )
    secret = secret_text(key.secret(services.settings.cache_secret))
    return respond(_render_key(key, []) | {"secret": secret})


async def remove(services: Services, request: ManagementRequest) -> Response:
    """Delete the key. Webhooks are no longer signed."""
    account_id, actor = request.account_id, request.principal.api_token_id
    if not await webhook_keys.remove(services.database, account_id, services.clock.now(), actor=actor):
        raise Refusal(Reason.OBJECT_UNKNOWN)
    return respond(None)


def _render_key(key: WebhookKey, previous: list[WebhookKey]) -> dict[str, Any]:
    ends = [each.expires_at for each in previous if each.expires_at is not None]
    until = format_time(max(ends)) if ends else None
    return {"id": key.key_id, "created_on": format_time(key.created_at), "previous_signs_until": until}
