"""`/user` and `/memberships`: the caller's user and the accounts that the user is a member of.

For an account without a user, the account itself is returned as its user, with the account's id and an empty email.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, structs
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.management.accounts import AccountResult, render_account
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
from gateway.openapi.operation import describe
from gateway.services import Services
from tenants import accounts, members, users
from tenants.accounts import Account
from tenants.credentials.principal import Principal
from tenants.credentials.roles import Role, shown_role
from tenants.users import NO_PROFILE, User

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


class Membership(Struct, frozen=True):
    """A membership of the caller, or an invitation with the status `pending`."""

    id: str
    account: AccountResult
    roles: list[str]
    status: Literal["accepted", "pending"]
    api_access_enabled: bool


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


def _check_acts_as_user(principal: Principal) -> None:
    if not principal.acts_as_user:
        raise Refusal(Reason.NOT_PERMITTED)


@takes_body(UserBody, permit=_check_acts_as_user)
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


@describe(result=list[Membership], is_paged=True)
@takes_query(MembershipsQuery)
async def list_memberships(services: Services, request: ManagementRequest, query: MembershipsQuery) -> Response:
    """List the caller's memberships: one for each account that the credential gives access to. With the status
    `pending`, list the caller's invitations."""
    rows = [row for row in await _memberships(services, request.principal) if row["status"] == query.status]
    name = (query.account_name or query.name).lower()
    rows = [row for row in rows if name in row["account"]["name"].lower()]
    return query.respond(query.slice(rows), len(rows))


@describe(result=Membership)
async def get_membership(services: Services, request: ManagementRequest) -> Response:
    """Get a membership or an invitation."""
    return respond(await _find(services, request))


@takes_body(MembershipBody)
async def answer_invitation(services: Services, request: ManagementRequest, body: MembershipBody) -> Response:
    """Accept or reject an invitation. Rejecting a membership ends it."""
    membership = await _find(services, request)
    if body.status == "rejected":
        await _end(services, request, membership)
    elif membership["status"] == "pending":
        user, context = await _user(services, request), request.change_context
        with change_errors():
            await members.accept(services.database, user, membership["account"]["id"], context=context)
    return respond(membership | {"status": body.status})


async def leave(services: Services, request: ManagementRequest) -> Response:
    """End a membership of the caller's user, or reject an invitation. An account without a user cannot leave itself."""
    membership = await _find(services, request)
    await _end(services, request, membership)
    return respond({"id": membership["id"]})


async def _end(services: Services, request: ManagementRequest, membership: dict[str, Any]) -> None:
    """End a membership or reject an invitation. Raises Refusal if the caller is not the user who would leave."""
    user, account_id, context = await _user(services, request), membership["account"]["id"], request.change_context
    with change_errors():
        if membership["status"] == "pending":
            await members.reject(services.database, user, account_id, context=context)
        else:
            await users.leave(services.database, user.user_id, account_id, context=context)


async def _user(services: Services, request: ManagementRequest) -> User:
    """Return the caller's user. Raises Refusal if the credential is not the user's own."""
    _check_acts_as_user(request.principal)
    return existing(await users.find(services.database, request.principal.user_id))


async def _find(services: Services, request: ManagementRequest) -> dict[str, Any]:
    membership_id = request.path_params["membership_id"]
    rows = await _memberships(services, request.principal)
    return existing(next((row for row in rows if row["id"] == membership_id), None))


async def _memberships(services: Services, principal: Principal) -> list[dict[str, Any]]:
    """Return the caller's memberships, and after them the invitations."""
    database, grants = services.database, principal.accounts()
    user = await users.find(database, principal.user_id) if principal.user_id else None
    roles = await users.roles_of(database, user.user_id) if user is not None else {}
    invitations = await members.invitations_of(database, user.email) if user is not None else []
    invited = {invitation.account_id: invitation.role for invitation in invitations}
    open_ids = [account_id for account_id, grant in grants.items() if grant.scopes]
    found = await accounts.list_all(database, {*open_ids, *invited})
    holder = principal.account_id if user is None else user.email
    return [
        _render_membership(account, holder, roles.get(account.account_id, "administrator"))
        for account in found
        if account.account_id in open_ids
    ] + [
        _render_membership(account, holder, invited[account.account_id], is_pending=True)
        for account in found
        if account.account_id in invited
    ]


def _render_membership(account: Account, holder: str, role: Role, *, is_pending: bool = False) -> dict[str, Any]:
    return {
        "id": users.membership_id(holder, account.account_id),
        "account": render_account(account),
        "roles": [shown_role(role)],
        "status": "pending" if is_pending else "accepted",
        "api_access_enabled": True,
    }
