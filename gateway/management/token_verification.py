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
from tenants.credentials.principal import Principal, Refused, TokenKind

_MESSAGES = {
    "active": "This API Token is valid and active",
    "expired": "This API Token is expired",
    "disabled": "This API Token is disabled",
    "not_yet": "This API Token is not valid yet",
}


async def verify_user_token(services: Services, request: Request) -> Response:
    """Of any account; an account's own token is not known here."""
    return _told(await _verdict(services, request), "user", None)


async def verify_account_token(services: Services, request: Request) -> Response:
    """Of the account in the path."""
    return _told(await _verdict(services, request), "account", request.path_params["account_id"])


async def _verdict(services: Services, request: Request) -> Principal | Refused:
    address = services.client_address(request.scope.get("client"))
    return await authentication.judge(services.verifier, request.scope["headers"], address)


def _told(verdict: Principal | Refused, kind: TokenKind, account_id: str | None) -> Response:
    standing = verdict.reason if isinstance(verdict, Refused) else "active"
    if standing not in _MESSAGES or not _is_here(verdict, kind, account_id):
        raise Refusal(Reason.API_TOKEN_INVALID)
    status = "disabled" if standing == "not_yet" else standing
    result: dict[str, Any] = {"id": verdict.api_token_id, "status": status}
    for name, time in (("expires_on", verdict.expires_at), ("not_before", verdict.not_before)):
        if time is not None:
            result[name] = time.strftime("%Y-%m-%dT%H:%M:%SZ")
    messages = [{"code": 10000, "message": _MESSAGES[standing]}]
    return Response(envelope.success(result, messages=messages), media_type="application/json")


def _is_here(verdict: Principal | Refused, kind: TokenKind, account_id: str | None) -> bool:
    """Whether this route answers for the credential. A global key is the user's, and of each account of the user's."""
    if isinstance(verdict, Principal) and verdict.has_global_key:
        return account_id is None or account_id in verdict.elsewhere
    return verdict.kind == kind and account_id in (None, verdict.account_id)
