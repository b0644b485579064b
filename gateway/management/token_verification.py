"""`GET /user/tokens/verify` and `GET A/tokens/verify`: the status of the API token that the request carries.

Each route verifies only its own kind of token. Expired and disabled tokens get their status, because the caller knows
the whole secret; unknown and revoked tokens get 401.
"""

from __future__ import annotations

from starlette.responses import Response

from gateway import authentication
from gateway.errors import Reason, Refusal
from gateway.management.endpoint import ManagementRequest, format_time, respond
from gateway.services import Services
from tenants.credentials.principal import Principal, Refused, TokenKind

_MESSAGES = {
    "active": "This API Token is valid and active",
    "expired": "This API Token is expired",
    "disabled": "This API Token is disabled",
    "not_yet": "This API Token is not valid yet",
}


async def verify_user_token(services: Services, request: ManagementRequest) -> Response:
    """Get the status of a user's token."""
    return _render(await _verify(services, request), "user", None)


async def verify_account_token(services: Services, request: ManagementRequest) -> Response:
    """Get the status of a token of the account in the path."""
    return _render(await _verify(services, request), "account", request.account_id)


async def _verify(services: Services, request: ManagementRequest) -> Principal | Refused:
    return await authentication.verify(services, request.scope["headers"], request.scope.get("client"))


def _render(verified: Principal | Refused, kind: TokenKind, account_id: str | None) -> Response:
    state = verified.reason if isinstance(verified, Refused) else "active"
    if state not in _MESSAGES or not _matches_route(verified, kind, account_id):
        raise Refusal(Reason.API_TOKEN_INVALID)
    # Clients know only active, disabled and expired.
    result = {"id": verified.api_token_id, "status": "disabled" if state == "not_yet" else state}
    times = (("expires_on", verified.expires_at), ("not_before", verified.not_before))
    result |= {name: format_time(time) for name, time in times if time is not None}
    return respond(result, messages=[{"code": 10000, "message": _MESSAGES[state]}])


def _matches_route(verified: Principal | Refused, kind: TokenKind, account_id: str | None) -> bool:
    """Return True if a route for this kind and account verifies the credential. A user's global key is verified by the
    user route and by the route of each of the user's accounts."""
    if isinstance(verified, Principal) and verified.acts_as_user:
        return account_id is None or account_id in verified.elsewhere
    return verified.kind == kind and account_id in (None, verified.account_id)
