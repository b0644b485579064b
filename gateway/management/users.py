"""`/user` and `/memberships`: the caller's user and the accounts that the user is a member of.

For an account without a user, the account itself is returned as its user, with the account's id and an empty email.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, structs
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.management.accounts import render_account
from gateway.management.endpoint import (
    ManagementRequest,
    PageQuery,
    change_errors,
    existing,
    invalid,
    respond,
    takes_body,
    takes_query,
)
from gateway.services import Services
from tenants import accounts, users
from tenants.credentials.principal import Principal
from tenants.credentials.roles import shown_role
from tenants.users import NO_PROFILE

Name = Annotated[str, Meta(max_length=60)]
ShortText = Annotated[str, Meta(max_length=20)]


class UserBody(Struct, frozen=True):
    """The body that changes a user. Fields that are left out stay; null and "" clear a field."""

    first_name: Name | None = None
    last_name: Name | UnsetType | None = UNSET
    country: Annotated[str, Meta(max_length=30)] | UnsetType | None = UNSET
    telephone: ShortText | UnsetType | None = UNSET
    zipcode: ShortText | UnsetType | None = UNSET


class MembershipBody(Struct, frozen=True):
    """The response to an invitation."""

    status: Literal["accepted", "rejected"]


class MembershipsQuery(PageQuery, frozen=True, kw_only=True):
    """Query parameters of the list of memberships. Names match any part of the account's name."""

    name: str = ""
    account_name: str = msgspec.field(name="account.name", default="")
    status: str = "accepted"


async def get(services: Services, request: ManagementRequest) -> Response:
    """Get the caller's user."""
    principal = request.principal
    email, name, profile = "", "", NO_PROFILE
    if principal.user_id:
        user = await users.find(services.database, principal.user_id)
        if user is not None:
            email, name, profile = user.email, user.name, user.profile
    else:
        account = await accounts.find(services.database, principal.account_id)
        name = account.name if account else ""
    return respond(
        {
            "id": principal.holder_id,
            "email": email,
            "first_name": name,
            **structs.asdict(profile),
            "suspended": False,
            "two_factor_authentication_enabled": False,
            "two_factor_authentication_locked": False,
        }
    )


def _check_has_global_key(principal: Principal) -> None:
    if not principal.has_global_key:
        raise Refusal(Reason.NOT_PERMITTED)


@takes_body(UserBody, permit=_check_has_global_key)
async def update(services: Services, request: ManagementRequest, body: UserBody) -> Response:
    """Change the caller's user. Fields that are left out stay; null and "" clear a field."""
    user = existing(await users.find(services.database, request.principal.user_id))
    fields = {name: value for name, value in structs.asdict(body).items() if value is not UNSET}
    for field, value in fields.items():
        if value is not None and not value.isprintable():
            raise invalid(f"{field} must contain only printable characters")
    first_name = fields.pop("first_name")
    profile = structs.replace(user.profile, **{name: value or None for name, value in fields.items()})
    name = user.name if first_name is None else first_name
    with change_errors("first_name"):
        await users.change(services.database, user.user_id, name, profile, context=request.change_context)
    return await get(services, request)


@takes_query(MembershipsQuery)
async def list_memberships(services: Services, request: ManagementRequest, query: MembershipsQuery) -> Response:
    """List the caller's memberships: one for each account that the credential gives access to."""
    rows = await _memberships(services, request.principal) if query.status == "accepted" else []
    name = (query.account_name or query.name).lower()
    rows = [row for row in rows if name in row["account"]["name"].lower()]
    return query.respond(query.slice(rows), len(rows))


async def get_membership(services: Services, request: ManagementRequest) -> Response:
    """Get a membership."""
    return respond(await _find(services, request))


@takes_body(MembershipBody)
async def answer_invitation(services: Services, request: ManagementRequest, body: MembershipBody) -> Response:
    """Accept or reject a membership. Accepting has no effect, because members are added without an invitation;
    rejecting ends the membership."""
    membership = await _find(services, request)
    if body.status == "rejected":
        await _end(services, request, membership)
    return respond(membership | {"status": body.status})


async def leave(services: Services, request: ManagementRequest) -> Response:
    """End a membership of the caller's user. An account without a user cannot leave itself."""
    membership = await _find(services, request)
    await _end(services, request, membership)
    return respond({"id": membership["id"]})


async def _end(services: Services, request: ManagementRequest, membership: dict[str, Any]) -> None:
    """End a membership. Raises Refusal if the caller is not the user who would leave."""
    principal = request.principal
    _check_has_global_key(principal)
    account_id = membership["account"]["id"]
    with change_errors():
        await users.leave(services.database, principal.user_id, account_id, context=request.change_context)


async def _find(services: Services, request: ManagementRequest) -> dict[str, Any]:
    membership_id = request.path_params["membership_id"]
    rows = await _memberships(services, request.principal)
    return existing(next((row for row in rows if row["id"] == membership_id), None))


async def _memberships(services: Services, principal: Principal) -> list[dict[str, Any]]:
    account_ids = [account_id for account_id, grant in principal.accounts().items() if grant.scopes]
    roles = await users.roles_of(services.database, principal.user_id) if principal.user_id else {}
    return [
        {
            "id": users.membership_id(principal.holder_id, account.account_id),
            "account": render_account(account),
            "roles": [shown_role(roles.get(account.account_id, "administrator"))],
            "status": "accepted",
            "api_access_enabled": True,
        }
        for account in await accounts.list_all(services.database, account_ids)
    ]
