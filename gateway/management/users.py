"""`/user` and `/memberships`: who the caller is, and of which accounts.

An account that has no user is its own: its id is the user's, and its email is empty.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.management.accounts import shown_account
from gateway.management.objects import answer, body_of, invalid, page_query, principal_of
from gateway.services import Services
from storage.errors import Missing
from tenants import accounts, users
from tenants.credentials.principal import Principal
from tenants.credentials.roles import shown_role
from tenants.users import NO_PROFILE

MAX_NAME = 60
_PROFILE = {"last_name": MAX_NAME, "country": 30, "telephone": 20, "zipcode": 20}


async def get(services: Services, request: Request) -> Response:
    """The caller's user."""
    principal = principal_of(request)
    profile = NO_PROFILE
    if principal.user_id:
        user = await users.find(services.database, principal.user_id)
        email, name, profile = (user.email, user.name, user.profile) if user else ("", "", profile)
    else:
        account = await accounts.find(services.database, principal.account_id)
        email, name = "", account.name if account else ""
    shown = {"id": principal.holder_id, "email": email, "first_name": name} | structs.asdict(profile)
    locks = {"two_factor_authentication_enabled": False, "two_factor_authentication_locked": False}
    return answer(shown | {"suspended": False} | locks)


async def update(services: Services, request: Request) -> Response:
    """What the caller's user is called, and says beside it; what is left out stays, null and "" are nothing."""
    principal = principal_of(request)
    if not principal.has_global_key:
        raise Refusal(Reason.NOT_PERMITTED)
    body = await body_of(services, request)
    user = await users.find(services.database, principal.user_id)
    if user is None:
        raise Refusal(Reason.OBJECT_UNKNOWN)
    name = _said(body, "first_name") if body.get("first_name") is not None else user.name
    profile = structs.replace(
        user.profile, **{field: _said(body, field) or None for field in _PROFILE if field in body}
    )
    try:
        await users.change(
            services.database, user.user_id, name, profile, who=principal.api_token_id, clock=services.clock
        )
    except ValueError as error:
        raise invalid(f"first_name: {error}") from None
    except Missing:
        raise Refusal(Reason.OBJECT_UNKNOWN) from None
    return await get(services, request)


async def list_memberships(services: Services, request: Request) -> Response:
    """One for each account that the credential opens at all."""
    query = page_query(request)
    rows = await _memberships(services, principal_of(request))
    name = request.query_params.get("account.name", "") or request.query_params.get("name", "")
    rows = [row for row in rows if name.lower() in row["account"]["name"].lower()]
    if request.query_params.get("status", "accepted") != "accepted":
        rows = []
    return query.answer(query.cut(rows), len(rows))


async def get_membership(services: Services, request: Request) -> Response:
    """One of the memberships."""
    return answer(await _find(services, request))


async def answer_invitation(services: Services, request: Request) -> Response:
    """Accept a membership, which changes nothing here, or reject it: that ends it."""
    status = (await body_of(services, request)).get("status")
    if status not in ("accepted", "rejected"):
        raise invalid("status must be accepted or rejected")
    found = await _find(services, request)
    if status == "rejected":
        await _end(services, request, found)
    return answer(found | {"status": status})


async def leave(services: Services, request: Request) -> Response:
    """End a user's membership. An account that is its own user cannot leave itself."""
    found = await _find(services, request)
    await _end(services, request, found)
    return answer({"id": found["id"]})


async def _end(services: Services, request: Request, found: dict[str, Any]) -> None:
    """Raises Refusal where there is no user who could leave."""
    principal = principal_of(request)
    if not principal.has_global_key:
        raise Refusal(Reason.NOT_PERMITTED)
    try:
        await users.leave(
            services.database,
            principal.user_id,
            found["account"]["id"],
            who=principal.api_token_id,
            ephemeral=services.ephemeral,
            clock=services.clock,
        )
    except Missing:
        raise Refusal(Reason.OBJECT_UNKNOWN) from None


def _said(body: dict[str, Any], field: str) -> str:
    """Raises Refusal."""
    value, limit = body.get(field) or "", _PROFILE.get(field, MAX_NAME)
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise invalid(f"{field} must be <= {limit} printable characters")
    return value


async def _find(services: Services, request: Request) -> dict[str, Any]:
    membership_id = request.path_params["membership_id"]
    for row in await _memberships(services, principal_of(request)):
        if row["id"] == membership_id:
            return row
    raise Refusal(Reason.OBJECT_UNKNOWN)


async def _memberships(services: Services, principal: Principal) -> list[dict[str, Any]]:
    opened = [account_id for account_id, grant in principal.accounts().items() if grant.scopes]
    roles = await users.roles_of(services.database, principal.user_id) if principal.user_id else {}
    return [
        {
            "id": users.membership_id(principal.holder_id, account.account_id),
            "account": shown_account(account),
            "roles": [shown_role(roles.get(account.account_id, "administrator"))],
            "status": "accepted",
            "api_access_enabled": True,
        }
        for account in await accounts.list_all(services.database, opened)
    ]
