"""`A/ai/webhooks/key`: the key that an account's webhooks are signed with. Its secret is shown when it is made, and
never again."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.jobs.webhook_signature import secret_text
from gateway.management.objects import answer, body_of, invalid, principal_of, shown_time
from gateway.services import Services
from tenants.jobs import webhook_keys
from tenants.jobs.webhook_keys import WebhookKey

DEFAULT_OVERLAP_S, MAX_OVERLAP_S = 86_400, 7 * 86_400


async def get(services: Services, request: Request) -> Response:
    """The key that signs now, and until when the one before does; no secrets."""
    account_id = request.path_params["account_id"]
    found = await webhook_keys.signing(services.database, account_id, services.clock.now())
    if not found:
        raise Refusal(Reason.OBJECT_UNKNOWN)
    return answer(_shown(found[0], found[1:]))


async def replace(services: Services, request: Request) -> Response:
    """Make a key, with its secret for receivers to verify with. The one before signs on beside it for `overlap_s`, a
    day unless it is given."""
    overlap_s = (await _body(services, request)).get("overlap_s", DEFAULT_OVERLAP_S)
    if type(overlap_s) not in (int, float) or not 0 <= overlap_s <= MAX_OVERLAP_S:
        raise invalid(f"overlap_s must be a number from 0 to {MAX_OVERLAP_S}")
    made = await webhook_keys.replace(
        services.database,
        request.path_params["account_id"],
        services.clock.now(),
        overlap_s=overlap_s,
        who=principal_of(request).api_token_id,
    )
    secret = secret_text(made.secret(services.settings.cache_secret))
    return answer(_shown(made, []) | {"secret": secret})


async def remove(services: Services, request: Request) -> Response:
    """Sign webhooks no more."""
    account_id, who = request.path_params["account_id"], principal_of(request).api_token_id
    if not await webhook_keys.remove(services.database, account_id, services.clock.now(), who=who):
        raise Refusal(Reason.OBJECT_UNKNOWN)
    return answer(None)


async def _body(services: Services, request: Request) -> dict[str, Any]:
    """None at all is fine. Raises Refusal."""
    if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return {}
    return await body_of(services, request)


def _shown(key: WebhookKey, earlier: list[WebhookKey]) -> dict[str, Any]:
    ends = [each.expires_at for each in earlier if each.expires_at is not None]
    until = shown_time(max(ends)) if ends else None
    return {"id": key.key_id, "created_on": shown_time(key.created_at), "previous_signs_until": until}
