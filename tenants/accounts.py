"""Accounts: create, change, block, delete, look up. An account is one tenant; its id is 32 hexadecimal digits."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct
from sqlalchemy import Select, insert, select, update
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, new_id_hex
from storage.ephemeral import Ephemeral
from storage.errors import Missing
from telemetry.clock import SYSTEM_CLOCK, Clock
from tenants.audit import audit_log as audit
from tenants.credentials import decision_epoch
from tenants.credentials.principal import AccountTerms
from tenants.quota.limits import parse_own
from tenants.residency import (
    RETENTION_RULES,
    RegionRule,
    Residency,
    RetentionRule,
    decode_rule,
    encode_rule,
    residency_of,
)
from tenants.tables import accounts, api_tokens

AccountStatus = Literal["active", "blocked"]

_ACCOUNT_ID = re.compile(r"[0-9a-f]{32}")
MAX_NAME_LENGTH = 256


class AccountSettings(Struct, frozen=True, omit_defaults=True):
    """Account settings of the Cloudflare API. Stored and returned, but not enforced."""

    enforce_twofactor: bool = False
    abuse_contact_email: str | None = None


@dataclass(frozen=True)
class Account:
    """One tenant."""

    account_id: str
    name: str
    status: AccountStatus
    plan: str
    created_at: datetime
    settings: AccountSettings = field(default_factory=AccountSettings)
    region: RegionRule | None = None
    retention: RetentionRule = "standard"
    limits: str = ""


PLANS = ("free", "paid", "enterprise")
_NAMES = ("account_id", "name", "status", "plan", "created_at", "settings", "region", "retention", "limits")
_COLUMNS = [accounts.c[name] for name in _NAMES]


async def create(
    database: Database,
    name: str,
    account_id: str | None = None,
    *,
    plan: str = "paid",
    who: str = "cli",
    clock: Clock = SYSTEM_CLOCK,
) -> Account:
    """Create an active account, with a new id unless one is given.

    Raises ValueError for an invalid name or id, Conflict if the id is taken.
    """
    if account_id is not None and not _ACCOUNT_ID.fullmatch(account_id):
        raise ValueError("an account id is 32 lowercase hexadecimal digits")
    account = Account(account_id or new_id_hex(), checked_name(name), "active", plan, clock.now())
    async with database.transaction() as connection:
        await insert_account(connection, account, who)
    return account


async def insert_account(connection: AsyncConnection, account: Account, who: str) -> None:
    """Insert a new account within the caller's transaction."""
    values = {column: getattr(account, column.name) for column in _COLUMNS}
    encoded = {accounts.c.settings: _encoded(account.settings), accounts.c.region: encode_rule(account.region)}
    await connection.execute(insert(accounts).values(values | encoded))
    ids = {"account_id": account.account_id, "subject_id": account.account_id}
    await audit.append(connection, at=account.created_at, who=who, action="account.create", **ids)


async def find(database: Database, account_id: str) -> Account | None:
    async with database.connection() as connection:
        query = _existing().where(accounts.c.account_id == account_id)
        row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else _account(row)


async def was_made(database: Database, account_id: str) -> bool:
    """Return True if the account exists or has existed: usage of deleted accounts is kept."""
    async with database.connection() as connection:
        query = select(accounts.c.account_id).where(accounts.c.account_id == account_id)
        return (await connection.execute(query)).first() is not None


async def list_all(database: Database, account_ids: Collection[str] | None = None) -> list[Account]:
    """Return all accounts, or those with the given ids, oldest first."""
    query = _existing().order_by(accounts.c.created_at, accounts.c.account_id)
    if account_ids is not None:
        query = query.where(accounts.c.account_id.in_(list(account_ids)))
    async with database.connection() as connection:
        return [_account(row) for row in (await connection.execute(query)).mappings()]


async def change(
    database: Database,
    account_id: str,
    name: str,
    settings: AccountSettings | None = None,
    *,
    who: str,
    clock: Clock = SYSTEM_CLOCK,
) -> Account:
    """Change the name and, unless None, the settings. Raises ValueError for an invalid name, Missing."""
    values: dict[str, object] = {"name": checked_name(name)}
    if settings is not None:
        values["settings"] = _encoded(settings)
    is_this = (accounts.c.account_id == account_id) & accounts.c.deleted_at.is_(None)
    async with database.transaction() as connection:
        done = await connection.execute(update(accounts).where(is_this).values(**values))
        if done.rowcount == 0:
            raise Missing(f"account {account_id}")
        ids = {"account_id": account_id, "subject_id": account_id}
        await audit.append(connection, at=clock.now(), who=who, action="account.update", **ids)
        row = (await connection.execute(select(*_COLUMNS).where(is_this))).mappings().one()
    return _account(row)


async def set_region(
    database: Database,
    account_id: str,
    region: RegionRule | None,
    *,
    who: str,
    ephemeral: Ephemeral | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Set where the account's calls may run (None: anywhere); effective in every process within seconds. Raises
    Missing."""
    values = {"region": encode_rule(region)}
    await _set(database, account_id, values, "account.region", values["region"] or "anywhere", who, ephemeral, clock)


async def set_terms(
    database: Database,
    account_id: str,
    *,
    plan: str | None = None,
    limits: str | None = None,
    who: str,
    ephemeral: Ephemeral | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Set the account's plan and its own limits, which replace the operator's ("" for none); None leaves a value
    unchanged. Effective in every process within seconds. Raises Missing, ValueError."""
    values: dict[str, object] = {}
    if plan is not None:
        values["plan"] = checked_plan(plan)
    if limits is not None:
        parse_own(limits)
        values["limits"] = limits
    detail = ", ".join(f"{name}={value}" for name, value in values.items())
    await _set(database, account_id, values, "account.terms", detail, who, ephemeral, clock)


def checked_plan(plan: str) -> str:
    """Return `plan`. Raises ValueError if there is no such plan."""
    if plan not in PLANS:
        raise ValueError(f"a plan is one of {', '.join(PLANS)}")
    return plan


async def set_retention(
    database: Database,
    account_id: str,
    retention: str,
    *,
    who: str,
    ephemeral: Ephemeral | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Set the retention rule; effective in every process within seconds. Raises Missing, ValueError."""
    if retention not in RETENTION_RULES:
        raise ValueError(f"retention is one of {', '.join(RETENTION_RULES)}")
    await _set(database, account_id, {"retention": retention}, "account.retention", retention, who, ephemeral, clock)


async def call_terms(database: Database, account_id: str, api_token_id: str) -> tuple[Residency, AccountTerms]:
    """Return the residency and terms of calls by an API token on an account; the strictest ones if the account is
    gone."""
    columns = accounts.c.region, accounts.c.retention, accounts.c.plan, accounts.c.limits
    own = select(*columns).where(accounts.c.account_id == account_id)
    token = select(api_tokens.c.region).where(api_tokens.c.api_token_id == api_token_id)
    async with database.connection() as connection:
        found = (await connection.execute(own)).one_or_none()
        narrower = (await connection.execute(token)).scalar_one_or_none()
    if found is None:
        return residency_of("", "zero"), AccountTerms()
    return residency_of(found.region, found.retention, narrower), AccountTerms.of(found.plan, found.limits)


async def delete(
    database: Database,
    account_id: str,
    *,
    who: str,
    ephemeral: Ephemeral | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Delete the account and revoke its API tokens, effective in every process within seconds. Usage and audit entries
    stay. Raises Missing."""
    now = clock.now()
    is_this = (accounts.c.account_id == account_id) & accounts.c.deleted_at.is_(None)
    async with database.transaction() as connection:
        epoch = await decision_epoch.raise_epoch(connection)
        gone = update(accounts).where(is_this).values(status="blocked", deleted_at=now, decision_epoch=epoch)
        if (await connection.execute(gone)).rowcount == 0:
            raise Missing(f"account {account_id}")
        # A user's own tokens may open other accounts too; there they stay good.
        is_its_own = (api_tokens.c.account_id == account_id) & (api_tokens.c.status != "revoked")
        is_its_own &= (api_tokens.c.kind == "account") | api_tokens.c.user_id.is_(None)
        revoked = update(api_tokens).where(is_its_own)
        await connection.execute(revoked.values(status="revoked", revoked_at=now, decision_epoch=epoch))
        ids = {"account_id": account_id, "subject_id": account_id}
        await audit.append(connection, at=now, who=who, action="account.delete", **ids)
    await decision_epoch.tell(ephemeral, account_id)


async def block(
    database: Database,
    account_id: str,
    *,
    who: str = "cli",
    ephemeral: Ephemeral | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Reject the account's calls from now on; its tokens still authenticate. Raises Missing."""
    await _set_status(database, account_id, "blocked", "account.block", who, ephemeral, clock)


async def unblock(
    database: Database,
    account_id: str,
    *,
    who: str = "cli",
    ephemeral: Ephemeral | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Undo `block`. Raises Missing."""
    await _set_status(database, account_id, "active", "account.unblock", who, ephemeral, clock)


def checked_name(name: str) -> str:
    """Return the stripped name. Raises ValueError unless it is printable and not too long."""
    name = name.strip()
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise ValueError(f"a name is 1 to {MAX_NAME_LENGTH} printable characters")
    return name


async def _set_status(
    database: Database,
    account_id: str,
    status: AccountStatus,
    action: str,
    who: str,
    ephemeral: Ephemeral | None,
    clock: Clock,
) -> None:
    await _set(database, account_id, {"status": status}, action, "", who, ephemeral, clock)


async def _set(
    database: Database,
    account_id: str,
    values: Mapping[str, object],
    action: str,
    detail: str,
    who: str,
    ephemeral: Ephemeral | None,
    clock: Clock,
) -> None:
    """Change values that verifiers cache, and notify them."""
    async with database.transaction() as connection:
        epoch = await decision_epoch.raise_epoch(connection)
        statement = update(accounts).where(accounts.c.account_id == account_id, accounts.c.deleted_at.is_(None))
        done = await connection.execute(statement.values(**values, decision_epoch=epoch))
        if done.rowcount == 0:
            raise Missing(f"account {account_id}")
        ids = {"account_id": account_id, "subject_id": account_id}
        await audit.append(connection, at=clock.now(), who=who, action=action, detail=detail, **ids)
    await decision_epoch.tell(ephemeral, account_id)


def _existing() -> Select[Any]:
    return select(*_COLUMNS).where(accounts.c.deleted_at.is_(None))


def _account(row: RowMapping) -> Account:
    text = row["settings"]
    settings = AccountSettings() if text is None else msgspec.json.decode(text, type=AccountSettings)
    plan = AccountTerms.of(row["plan"], row["limits"]).plan
    return Account(**{**row, "plan": plan, "settings": settings, "region": decode_rule(row["region"])})


def _encoded(settings: AccountSettings) -> str | None:
    return None if settings == AccountSettings() else msgspec.json.encode(settings).decode()
