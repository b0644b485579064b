"""`A/members` and `A/roles`: the members of an account, invitations, and the roles that members can have.

The formats are those of Cloudflare's members API. A member has exactly one role; policies are not supported.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

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
from storage.errors import Conflict
from tenants import members, users
from tenants.credentials.roles import ROLES, Role, permissions_of, role_id, shown_role
from tenants.members import Member

PLATFORM_SCOPE = "platform:write"
Status = Literal["accepted", "pending"]


class RolePermission(Struct, frozen=True):
    """Permissions of a role for one kind of objects."""

    read: bool
    write: bool


class AccountRole(Struct, frozen=True):
    """A role of members. `permissions` are by kind of objects."""

    id: str
    name: str
    description: str
    permissions: dict[str, RolePermission]


class MemberUser(Struct, frozen=True):
    """The user behind a member; `id` is null if no user has the invited address yet."""

    id: str | None
    email: str
    first_name: str | None
    last_name: str | None
    two_factor_authentication_enabled: bool = False


class AccountMember(Struct, frozen=True):
    """A member, or an invited person with the status `pending`. Send `version` as `if-match` with a change."""

    id: str
    email: str
    status: Status
    roles: list[AccountRole]
    user: MemberUser
    version: str
    policies: list[dict[str, str]] = []


class RoleReference(Struct, frozen=True):
    """A role in a change."""

    id: str


class NewMemberBody(Struct, frozen=True):
    """The body that invites a person. `status` `accepted` adds an existing user without an invitation, which only the
    platform's administrators may do."""

    email: Annotated[str, Meta(max_length=254)]
    roles: Annotated[list[str], Meta(min_length=1, max_length=20)] | UnsetType = UNSET
    status: Status = "pending"
    policies: list[Any] | UnsetType = UNSET


class MemberBody(Struct, frozen=True):
    """The body that changes the role of a member."""

    roles: Annotated[list[RoleReference | str], Meta(min_length=1, max_length=20)] | UnsetType = UNSET
    policies: list[Any] | UnsetType = UNSET


class MembersQuery(PageQuery, frozen=True, kw_only=True):
    """Query parameters of the list of members. By default, the oldest member comes first."""

    order: Literal["user.first_name", "user.last_name", "user.email", "status"] | None = None
    status: Literal["accepted", "pending", "rejected"] | None = None


class DeletedMember(Struct, frozen=True):
    """A removed member."""

    id: str


@describe(result=list[AccountMember], is_paged=True)
@takes_query(MembersQuery)
async def list_(services: Services, request: ManagementRequest, query: MembersQuery) -> Response:
    """List the members of the account, and invited people."""
    found = [_render_member(each) for each in await members.list_all(services.database, request.account_id)]
    found = [each for each in found if query.status in (None, each.status)]
    if query.order is not None:
        key = query.order.removeprefix("user.")
        found.sort(key=lambda each: str(getattr(each if key == "status" else each.user, key) or "").lower())
    return query.respond(query.slice(found), len(found))


@describe(result=AccountMember)
async def get(services: Services, request: ManagementRequest) -> Response:
    """Get a member."""
    return _respond(await _find(services, request))


@describe(result=AccountMember)
@takes_body(NewMemberBody)
async def create(services: Services, request: ManagementRequest, body: NewMemberBody) -> Response:
    """Invite a person to the account. The person accepts as a user with this address, through `/memberships`."""
    role = _role_in(list(body.roles or ()), body.policies)
    database, account_id, context = services.database, request.account_id, request.change_context
    try:
        with change_errors():
            if body.status == "pending":
                return _respond(await members.invite(database, account_id, body.email, role, context=context))
            if PLATFORM_SCOPE not in request.principal.scopes:
                raise invalid("status must be pending: only administrators of the platform can add members directly")
            user = await users.find_by_email(database, body.email)
            if user is None:
                raise invalid("email must be the address of a user: other people can only be invited")
            await users.join(database, user.user_id, account_id, role=role, context=context)
    except Conflict as error:
        is_limit = isinstance(error, members.TooManyInvitations)
        raise invalid(str(error) if is_limit else "email: this person is a member or is invited already") from None
    member_id = users.membership_id(user.email, account_id)
    return _respond(existing(await members.find(database, account_id, member_id)))


@describe(result=AccountMember)
@takes_body(MemberBody)
async def update(services: Services, request: ManagementRequest, body: MemberBody) -> Response:
    """Change the role of a member or of an invitation."""
    roles = [each if isinstance(each, str) else each.id for each in body.roles or ()]
    role, member = _role_in(roles, body.policies), await _find(services, request)
    with change_errors():
        await members.set_role(
            services.database, member, role, expected=request.expected_versions, context=request.change_context
        )
    return _respond(await _find(services, request))


@describe(result=DeletedMember)
async def delete(services: Services, request: ManagementRequest) -> Response:
    """Remove a member from the account, or withdraw an invitation."""
    member = await _find(services, request)
    with change_errors():
        await members.remove(services.database, member, context=request.change_context)
    return respond(DeletedMember(member.member_id))


@describe(result=list[AccountRole], is_paged=True)
@takes_query(PageQuery)
async def list_roles(_services: Services, _request: ManagementRequest, query: PageQuery) -> Response:
    """List the roles that a member can have."""
    return query.respond(query.slice([_render_role(role) for role in ROLES]), len(ROLES))


@describe(result=AccountRole)
async def get_role(_services: Services, request: ManagementRequest) -> Response:
    """Get a role."""
    wanted = request.path_params["role_id"]
    return respond(_render_role(existing(next((role for role in ROLES if role_id(role) == wanted), None))))


async def _find(services: Services, request: ManagementRequest) -> Member:
    member_id = request.path_params["member_id"]
    return existing(await members.find(services.database, request.account_id, member_id))


def _role_in(role_ids: list[str], policies: object) -> Role:
    """Return the only role in a body. Raises Refusal."""
    if policies is not UNSET and policies != []:
        raise invalid("policies are not supported: send roles")
    by_id = {role_id(role): role for role in ROLES}
    if len(role_ids) != 1 or role_ids[0] not in by_id:
        raise invalid("roles must be a list with the id of one role; GET accounts/{account_id}/roles lists them")
    return by_id[role_ids[0]]


def _respond(member: Member) -> Response:
    return respond(_render_member(member), version=member.version)


def _render_member(member: Member) -> AccountMember:
    user = member.user
    return AccountMember(
        id=member.member_id,
        email=member.email,
        status="pending" if member.is_pending else "accepted",
        roles=[_render_role(member.role)],
        user=MemberUser(
            id=None if user is None else user.user_id,
            email=member.email,
            first_name=None if user is None else user.name,
            last_name=None if user is None else user.profile.last_name,
        ),
        version=member.version,
    )


def _render_role(role: Role) -> AccountRole:
    permissions = {name: RolePermission(*allowed) for name, allowed in permissions_of(role).items()}
    return AccountRole(role_id(role), shown_role(role), _DESCRIPTIONS[role], permissions)


_DESCRIPTIONS: dict[Role, str] = {
    "administrator": "Can run models and change everything in the account.",
    "developer": "Can run models, manage finetunes, and read everything in the account.",
    "viewer": "Can read everything in the account.",
}
