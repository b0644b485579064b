"""`A/ai/webhooks/key`: the key that signs an account's webhooks. Its secret is only in the response that created it."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.jobs.webhook import secret_text
from gateway.management.endpoint import ManagementRequest, existing, format_time, respond, takes_body
from gateway.services import Services
from tenants.jobs import webhook_keys
from tenants.jobs.webhook_keys import WebhookKey

DEFAULT_OVERLAP_S, MAX_OVERLAP_S = 86_400, 7 * 86_400


class WebhookKeyBody(Struct, frozen=True):
    """The body that replaces a webhook key. For `overlap_s` seconds the previous key also signs."""

    overlap_s: Annotated[float, Meta(ge=0, le=MAX_OVERLAP_S)] = DEFAULT_OVERLAP_S


async def get(services: Services, request: ManagementRequest) -> Response:
    """Get the current key without its secret, and when the previous key stops signing."""
    account_id = request.account_id
    key, *previous = existing(await webhook_keys.signing(services.database, account_id, services.clock.now()) or None)
    return respond(_render_key(key, previous))


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
