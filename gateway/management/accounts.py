"""`/accounts`: the accounts that the caller's credential opens for reading, and for writing.

Only a user (whom the operator made) can create accounts, and is then a member of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Reason, Refusal
from gateway.management.objects import answer, body_of, invalid, page_query, principal_of, shown_time
from gateway.services import Services
from storage.database import new_id_hex
from storage.errors import Missing
from tenants import accounts, users
from tenants.accounts import Account, AccountSettings
from tenants.residency import RETENTION_RULES, RegionRule, RetentionRule, read_rule, shown_rule

READ_SCOPE = "account:read"


async def list_(services: Services, request: Request) -> Response:
    """Those that may be read; a credential that may read none is refused."""
    principal = principal_of(request)
    opened = [id_ for id_, grant in principal.accounts().items() if READ_SCOPE in grant.scopes]
    sees_all = principal.is_operator and READ_SCOPE in principal.scopes
    if not opened and not sees_all and not principal.has_global_key:
        raise Refusal(Reason.NOT_PERMITTED)
    name, query = request.query_params.get("name", "").lower(), page_query(request)
    found = [
        found
        for found in await accounts.list_all(services.database, None if sees_all else opened)
        if name in found.name.lower()
    ]
    return query.answer([shown_account(account) for account in query.cut(found)], len(found))


async def create(services: Services, request: Request) -> Response:
    """A new account, of the caller's user."""
    principal = principal_of(request)
    if not principal.user_id or "account:write" not in principal.scopes | principal.user_scopes:
        raise Refusal(Reason.NOT_PERMITTED)
    body = await body_of(services, request)
    name, settings = _name(body), _settings(body)
    _check_type(body, "standard")
    now = services.clock.now()
    given = body["settings"] if isinstance(body.get("settings"), dict) else {}
    region, retention = _region(given), _retention(given)
    account = Account(
        new_id_hex(), name, "active", "paid", now, settings or AccountSettings(), region=region, retention=retention
    )
    await users.create_account(
        services.database, principal.user_id, account, who=principal.api_token_id, ephemeral=services.ephemeral
    )
    return answer(shown_account(account))


async def get(services: Services, request: Request) -> Response:
    """The account in the path."""
    return answer(shown_account(await _find(services, request)))


async def update(services: Services, request: Request) -> Response:
    """Its name and settings, its region and retention among them; those that are left out stay."""
    body = await body_of(services, request)
    account = await _find(services, request)
    _check_type(body, shown_type(account))
    given = body["settings"] if isinstance(body.get("settings"), dict) else {}
    region, retention = _region(given), _retention(given)
    try:
        changed = await accounts.change(
            services.database,
            account.account_id,
            _name(body),
            _settings(body),
            who=principal_of(request).api_token_id,
            clock=services.clock,
        )
        by: dict[str, Any] = {
            "who": principal_of(request).api_token_id,
            "ephemeral": services.ephemeral,
            "clock": services.clock,
        }
        if "region" in given and region != account.region:
            await accounts.set_region(services.database, account.account_id, region, **by)
        if "retention" in given and retention != account.retention:
            await accounts.set_retention(services.database, account.account_id, retention, **by)
    except Missing:
        raise Refusal(Reason.OBJECT_UNKNOWN) from None
    region, retention = (
        region if "region" in given else account.region,
        retention if "retention" in given else account.retention,
    )
    return answer(shown_account(replace(changed, region=region, retention=retention)))


async def delete(services: Services, request: Request) -> Response:
    """For good, its API tokens with it."""
    account_id = request.path_params["account_id"]
    who = principal_of(request).api_token_id
    try:
        await accounts.delete(
            services.database, account_id, who=who, ephemeral=services.ephemeral, clock=services.clock
        )
    except Missing:
        raise Refusal(Reason.OBJECT_UNKNOWN) from None
    return answer({"id": account_id})


def shown_account(account: Account) -> dict[str, Any]:
    """The object of the API; a region and a retention are among the settings where they are not the usual ones."""
    settings = account.settings
    shown: dict[str, Any] = {
        "id": account.account_id,
        "name": account.name,
        "type": shown_type(account),
        "created_on": shown_time(account.created_at),
        "settings": {
            "enforce_twofactor": settings.enforce_twofactor,
            "abuse_contact_email": settings.abuse_contact_email,
        },
    }
    rules = {"region": shown_rule(account.region), "retention": account.retention}
    shown["settings"] |= {name: rule for name, rule in rules.items() if rule not in (None, "standard")}
    return shown


def shown_type(account: Account) -> str:
    return "enterprise" if account.plan == "enterprise" else "standard"


async def _find(services: Services, request: Request) -> Account:
    found = await accounts.find(services.database, request.path_params["account_id"])
    if found is None:
        raise Refusal(Reason.OBJECT_UNKNOWN)
    return found


def _name(body: dict[str, Any]) -> str:
    name = body.get("name")
    try:
        return accounts.checked_name(name if isinstance(name, str) else "")
    except ValueError as error:
        raise invalid(str(error)) from None


def _check_type(body: dict[str, Any], kept: str) -> None:
    if body.get("type", kept) != kept:
        raise invalid(f"type stays {kept}: the operator decides it")


def _region(given: dict[str, Any]) -> RegionRule | None:
    try:
        return read_rule(given.get("region"))
    except ValueError as error:
        raise invalid(f"settings/region: {error}") from None


def _retention(given: dict[str, Any]) -> RetentionRule:
    for rule in RETENTION_RULES:
        if given.get("retention", "standard") == rule:
            return rule
    raise invalid(f"settings/retention must be {' or '.join(RETENTION_RULES)}")


def _settings(body: dict[str, Any]) -> AccountSettings | None:
    value = body.get("settings")
    try:
        settings = None if value is None else msgspec.convert(value, AccountSettings)
    except msgspec.ValidationError as error:
        raise invalid(f"settings: {error}") from None
    if settings is not None and len(settings.abuse_contact_email or "") > 254:
        raise invalid("settings/abuse_contact_email must have <= 254 characters")
    return settings
