"""`/accounts`: the accounts that the caller's credential gives access to.

Only users can create accounts; users are created by the operator. A user is a member of each account they create.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response

from gateway.authentication import authorize_user
from gateway.errors import Reason, Refusal
from gateway.management.endpoint import (
    ManagementRequest,
    PageQuery,
    change_errors,
    existing,
    format_time,
    invalid,
    respond,
    takes_body,
    takes_query,
)
from gateway.openapi.operation import describe
from gateway.services import Services
from storage.database import new_id_hex
from tenants import accounts, users
from tenants.accounts import Account, AccountSettings
from tenants.credentials.principal import Principal
from tenants.residency import RegionRule, RetentionRule, read_rule, shown_rule

READ_SCOPE = "account:read"
WRITE_SCOPE = "account:write"


class AccountSettingsBody(Struct, frozen=True):
    """Settings of an account. `region` is null or an object of `countries` and `jurisdictions`."""

    enforce_twofactor: bool = False
    abuse_contact_email: Annotated[str, Meta(max_length=254)] | None = None
    region: Any = UNSET
    retention: RetentionRule | UnsetType = UNSET


class AccountBody(Struct, frozen=True):
    """The body that creates or changes an account."""

    name: str
    type: str | UnsetType = UNSET
    settings: AccountSettingsBody | None = None


class AccountSettingsResult(Struct, frozen=True):
    """Settings of an account; region and retention only if they are not the default."""

    enforce_twofactor: bool
    abuse_contact_email: str | None
    region: dict[str, list[str]] | UnsetType = UNSET
    retention: RetentionRule | UnsetType = UNSET


class AccountResult(Struct, frozen=True):
    """An account."""

    id: str
    name: str
    type: Literal["standard", "enterprise"]
    created_on: str
    settings: AccountSettingsResult


class DeletedAccount(Struct, frozen=True):
    """A deleted account."""

    id: str


class AccountsQuery(PageQuery, frozen=True, kw_only=True):
    """Query parameters of the list of accounts. `name` matches any part of an account's name."""

    name: str = ""


@describe(result=list[AccountResult], is_paged=True)
@takes_query(AccountsQuery)
async def list_(services: Services, request: ManagementRequest, query: AccountsQuery) -> Response:
    """List the accounts that the credential may read. A credential that may read no account is rejected."""
    principal = request.principal
    readable = [id_ for id_, grant in principal.accounts().items() if READ_SCOPE in grant.scopes]
    sees_all = principal.is_operator and READ_SCOPE in principal.scopes
    if not readable and not sees_all and not principal.acts_as_user:
        raise Refusal(Reason.NOT_PERMITTED)
    rows = [
        account
        for account in await accounts.list_all(services.database, None if sees_all else readable)
        if query.name.lower() in account.name.lower()
    ]
    return query.respond([render_account(account) for account in query.slice(rows)], len(rows))


def _check_may_create(principal: Principal) -> None:
    if not principal.is_operator:
        authorize_user(principal)
    has_owner = bool(principal.user_id) or principal.is_operator
    if not has_owner or WRITE_SCOPE not in principal.scopes | principal.user_scopes:
        raise Refusal(Reason.NOT_PERMITTED)


@describe(result=AccountResult)
@takes_body(AccountBody, permit=_check_may_create)
async def create(services: Services, request: ManagementRequest, body: AccountBody) -> Response:
    """Create an account, with the caller's user as its member. An operator without a user creates an account without
    members."""
    principal = request.principal
    _check_type(body, "standard")
    settings = body.settings or AccountSettingsBody()
    account = Account(
        new_id_hex(),
        _checked_name(body),
        "active",
        "paid",
        services.clock.now(),
        _account_settings(settings),
        region=_parse_region(settings),
        retention=settings.retention or "standard",
    )
    if principal.user_id:
        await users.create_account(services.database, principal.user_id, account, context=request.change_context)
    else:
        async with services.database.transaction() as connection:
            await accounts.insert_account(connection, account, request.change_context)
    return respond(render_account(account))


@describe(result=AccountResult)
async def get(services: Services, request: ManagementRequest) -> Response:
    """Get an account. The ETag is its version: send it as `if-match` with a change."""
    account = await _find(services, request)
    return respond(render_account(account), version=account.version)


@describe(result=AccountResult)
@takes_body(AccountBody)
async def update(services: Services, request: ManagementRequest, body: AccountBody) -> Response:
    """Change an account's name and settings, including region and retention. Settings that are left out stay. With
    `if-match`, the change is refused if name or settings have changed since they were read."""
    account = await _find(services, request)
    _check_type(body, account_type(account))
    name, settings = _checked_name(body), body.settings or AccountSettingsBody()
    region = account.region if settings.region is UNSET else _parse_region(settings)
    retention = settings.retention or account.retention
    changed_settings = None if body.settings is None else _account_settings(settings)
    database, account_id, context = services.database, account.account_id, request.change_context
    expected = request.expected_versions
    with change_errors():
        changed = await accounts.change(
            database, account_id, name, changed_settings, expected=expected, context=context
        )
        if region != account.region:
            await accounts.set_region(database, account_id, region, context=context)
        if retention != account.retention:
            await accounts.set_retention(database, account_id, retention, context=context)
    changed = replace(changed, region=region, retention=retention)
    return respond(render_account(changed), version=changed.version)


@describe(result=DeletedAccount)
async def delete(services: Services, request: ManagementRequest) -> Response:
    """Delete an account and its API tokens."""
    account_id = request.account_id
    with change_errors():
        await accounts.delete(services.database, account_id, context=request.change_context)
    return respond({"id": account_id})


def render_account(account: Account) -> dict[str, Any]:
    """Return an account as the API renders it. Region and retention are included only if they are not the default."""
    settings = account.settings
    rules = {"region": shown_rule(account.region), "retention": account.retention}
    return {
        "id": account.account_id,
        "name": account.name,
        "type": account_type(account),
        "created_on": format_time(account.created_at),
        "settings": {
            "enforce_twofactor": settings.enforce_twofactor,
            "abuse_contact_email": settings.abuse_contact_email,
            **{name: rule for name, rule in rules.items() if rule not in (None, "standard")},
        },
    }


def account_type(account: Account) -> str:
    """Return the type of an account, as Cloudflare's API names it."""
    return "enterprise" if account.plan == "enterprise" else "standard"


async def _find(services: Services, request: ManagementRequest) -> Account:
    return existing(await accounts.find(services.database, request.account_id))


def _checked_name(body: AccountBody) -> str:
    with change_errors("name"):
        return accounts.checked_name(body.name)


def _check_type(body: AccountBody, current: str) -> None:
    if body.type not in (UNSET, current):
        raise invalid(f"type must be {current}: only the operator can change the type of an account")


def _parse_region(settings: AccountSettingsBody) -> RegionRule | None:
    with change_errors("settings/region"):
        return read_rule(None if settings.region is UNSET else settings.region)


def _account_settings(settings: AccountSettingsBody) -> AccountSettings:
    return AccountSettings(settings.enforce_twofactor, settings.abuse_contact_email)
