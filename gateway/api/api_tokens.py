"""`GET /user/tokens/verify` and `GET A/tokens/verify`: how does this API token stand? Each answers for its own kind.

An expired or disabled token is told so, since its whole secret was right; an unknown or revoked one is not known.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway import authentication, envelope
from gateway.errors import Reason, Refusal
from gateway.services import Services
from tenants.principal import Principal, Refused, TokenKind

_MESSAGES = {
    "active": "This API Token is valid and active",
    "expired": "This API Token is expired",
    "disabled": "This API Token is disabled",
}


async def verify_user_token(services: Services, request: Request) -> Response:
    """Of any account; an account's own token is not known here."""
    return _told(await _verdict(services, request), "user", None)


async def verify_account_token(services: Services, request: Request) -> Response:
    """Of the account in the path."""
    return _told(await _verdict(services, request), "account", request.path_params["account_id"])


async def _verdict(services: Services, request: Request) -> Principal | Refused:
    secret = authentication.secret_in(request.scope["headers"])
    verdict = await services.verifier.verify(secret)
    if isinstance(verdict, Refused) and authentication.is_malformed(verdict, secret):
        raise Refusal(Reason.CREDENTIAL_MALFORMED)
    return verdict


def _told(verdict: Principal | Refused, kind: TokenKind, account_id: str | None) -> Response:
    status = verdict.reason if isinstance(verdict, Refused) else "active"
    is_here = verdict.kind == kind and account_id in (None, verdict.account_id)
    if status not in _MESSAGES or not is_here:
        raise Refusal(Reason.API_TOKEN_INVALID)
    result: dict[str, Any] = {"id": verdict.api_token_id, "status": status}
    if verdict.expires_at is not None:
        result["expires_on"] = verdict.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    messages = [{"code": 10000, "message": _MESSAGES[status]}]
    return Response(envelope.success(result, messages=messages), media_type="application/json")
