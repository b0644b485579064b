"""`GET /user/tokens/verify` and `GET A/tokens/verify`: is this API token good? Each answers for its own kind only."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway import authentication, envelope
from gateway.errors import Reason, Refusal
from gateway.services import Services
from tenants.principal import Principal

_ACCOUNT_TOKEN_PREFIX = "cfat_"  # noqa: S105 - how account tokens begin


async def verify_user_token(services: Services, request: Request) -> Response:
    """Of any account; an account's own token is not known here."""
    principal = await _prove(services, request, is_account_token=False)
    return _good(principal)


async def verify_account_token(services: Services, request: Request) -> Response:
    """Of the account in the path."""
    principal = await _prove(services, request, is_account_token=True)
    if principal.account_id != request.path_params["account_id"]:
        raise Refusal(Reason.API_TOKEN_INVALID)
    return _good(principal)


async def _prove(services: Services, request: Request, *, is_account_token: bool) -> Principal:
    headers = request.scope["headers"]
    is_right_kind = authentication.secret_in(headers).startswith(_ACCOUNT_TOKEN_PREFIX) == is_account_token
    try:
        principal = await authentication.prove(services.verifier, headers)
    except Refusal as refusal:
        if refusal.reason is Reason.CREDENTIAL_REFUSED:
            raise Refusal(Reason.API_TOKEN_INVALID) from None
        raise
    if not is_right_kind:
        raise Refusal(Reason.API_TOKEN_INVALID)
    return principal


def _good(principal: Principal) -> Response:
    result: dict[str, Any] = {"id": principal.api_token_id, "status": "active"}
    if principal.expires_at is not None:
        result["expires_on"] = principal.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    messages = [{"code": 10000, "message": "This API Token is valid and active"}]
    return Response(envelope.success(result, messages=messages), media_type="application/json")
