"""Accounts: create, change, block, delete and look up. An account is one tenant."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, Select, insert, select, update
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, new_id_hex
from storage.errors import Missing
from tenants.change_context import CLI, ChangeContext
from tenants.credentials import decision_epoch
from tenants.credentials.principal import AccountTerms
from tenants.disabled_models import MAX_DISABLED_MODELS, decode_models, encode_models
from tenants.quota.limits import parse_overrides
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
from tenants.versions import check_version, version_of

AccountStatus = Literal["active", "blocked"]

_ACCOUNT_ID = re.compile(r"[0-9a-f]{32}")
MAX_NAME_LENGTH = 256


class AccountSettings(Struct, frozen=True, omit_defaults=True):
    """Account settings of the Cloudflare API. Stored and returned, but not enforced."""

    enforce_twofactor: bool = False
    abuse_contact_email: str | None = None


@dataclass(frozen=True)
class Account:
    """One tenant. `account_id` is 32 hexadecimal digits; `limits` are rules that replace the operator's, or ""."""

    account_id: str
    name: str
    status: AccountStatus
    plan: str
    created_at: datetime
    settings: AccountSettings = field(default_factory=AccountSettings)
    region: RegionRule | None = None
    retention: RetentionRule = "standard"
    limits: str = ""

    @property
    def version(self) -> str:
        """The version of what `change` changes."""
        return version_of(self.name, self.settings)


PLANS = ("free", "paid", "enterprise")
_NAMES = ("account_id", "name", "status", "plan", "created_at", "settings", "region", "retention", "limits")
_COLUMNS = [accounts.c[name] for name in _NAMES]


async def create(
    database: Database, name: str, account_id: str | None = None, *, plan: str = "paid", context: ChangeContext = CLI
) -> Account:
    """Create an active account, with a new id unless one is given.

    Raises ValueError for an invalid name or id, Conflict if the id exists.
    """
    if account_id is not None and not _ACCOUNT_ID.fullmatch(account_id):
        raise ValueError(f"an account id must be 32 lowercase hexadecimal digits (got {account_id!r})")
    account = Account(account_id or new_id_hex(), checked_name(name), "active", plan, context.clock.now())
    async with database.transaction() as connection:
        await insert_account(connection, account, context)
    return account


async def insert_account(connection: AsyncConnection, account: Account, context: ChangeContext) -> None:
    """Insert a new account within the caller's transaction."""
    values = {column: getattr(account, column.name) for column in _COLUMNS}
    encoded = {accounts.c.settings: _encoded(account.settings), accounts.c.region: encode_rule(account.region)}
    await connection.execute(insert(accounts).values(values | encoded))
    await context.record(connection, "account.create", account.account_id, account.account_id)


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
    expected: frozenset[str] | None = None,
    context: ChangeContext = CLI,
) -> Account:
    """Change the name and, unless None, the settings.

    Raises ValueError for an invalid name, Missing; VersionChanged if the current version is not one of `expected`.
    """
    values: dict[str, object] = {"name": checked_name(name)}
    if settings is not None:
        values["settings"] = _encoded(settings)
    return await _set(database, account_id, values, "account.update", "", context, expected=expected)


async def set_region(
    database: Database, account_id: str, region: RegionRule | None, *, context: ChangeContext = CLI
) -> Account:
    """Set where the account's calls may run (None: anywhere). Raises Missing."""
    rule = encode_rule(region)
    return await _set(database, account_id, {"region": rule}, "account.region", rule or "anywhere", context)


async def set_terms(
    database: Database,
    account_id: str,
    *,
    plan: str | None = None,
    limits: str | None = None,
    context: ChangeContext = CLI,
) -> Account:
    """Set the account's plan and its own limits, which replace the operator's ("" for none). None leaves a value
    unchanged. Raises Missing, ValueError."""
    values: dict[str, object] = {}
    if plan is not None:
        values["plan"] = checked_plan(plan)
    if limits is not None:
        parse_overrides(limits)
        values["limits"] = limits
    detail = ", ".join(f"{name}={value}" for name, value in values.items())
    return await _set(database, account_id, values, "account.terms", detail, context)


def checked_plan(plan: str) -> str:
    """Return `plan`. Raises ValueError if there is no such plan."""
    if plan not in PLANS:
        raise ValueError(f"plan must be one of {', '.join(PLANS)} (got {plan!r})")
    return plan


async def set_retention(
    database: Database, account_id: str, retention: str, *, context: ChangeContext = CLI
) -> Account:
    """Set the retention rule. Raises Missing, ValueError."""
    if retention not in RETENTION_RULES:
        raise ValueError(f"retention must be one of {', '.join(RETENTION_RULES)} (got {retention!r})")
    return await _set(database, account_id, {"retention": retention}, "account.retention", retention, context)


async def set_blocked(
    database: Database, account_id: str, is_blocked: bool, *, context: ChangeContext = CLI
) -> Account:
    """Block or unblock an account. Calls of a blocked account are rejected; its tokens still authenticate. Raises
    Missing."""
    values = {"status": "blocked" if is_blocked else "active"}
    return await _set(database, account_id, values, "account.block" if is_blocked else "account.unblock", "", context)


async def disabled_models(database: Database, account_id: str) -> frozenset[str]:
    """Return the models that the account may not run. Raises StoreUnavailable."""
    async with database.connection() as connection:
        query = select(accounts.c.disabled_models).where(_is_existing(account_id))
        return decode_models((await connection.execute(query)).scalar_one_or_none())


async def set_model_disabled(
    database: Database, account_id: str, model: str, is_disabled: bool, *, context: ChangeContext = CLI
) -> frozenset[str]:
    """Disable or enable a model for an account, effective in every process within seconds. Return the account's
    disabled models. Raises Missing, and ValueError if the account would have too many."""
    async with database.transaction() as connection:
        epoch = await decision_epoch.raise_epoch(connection)  # locks: the models below are current
        query = select(accounts.c.account_id, accounts.c.disabled_models).where(_is_existing(account_id))
        row = (await connection.execute(query)).one_or_none()
        if row is None:
            raise Missing(f"account {account_id}")
        before = decode_models(row.disabled_models)
        models = before | {model} if is_disabled else before - {model}
        if models == before:
            return models
        if len(models) > MAX_DISABLED_MODELS:
            raise ValueError(f"at most {MAX_DISABLED_MODELS} models can be disabled for an account")
        changed = update(accounts).where(accounts.c.account_id == account_id)
        await connection.execute(changed.values(disabled_models=encode_models(models), decision_epoch=epoch))
        action = "account.disable_model" if is_disabled else "account.enable_model"
        await context.record(connection, action, account_id, account_id, model)
    await context.notify(account_id)
    return models


async def call_terms(database: Database, account_id: str, api_token_id: str) -> tuple[Residency, AccountTerms]:
    """Return the residency and terms of calls by an API token on an account; the strictest ones if the account no
    longer exists."""
    columns = [accounts.c[name] for name in ("region", "retention", "plan", "limits", "disabled_models")]
    account = select(*columns).where(accounts.c.account_id == account_id)
    token = select(api_tokens.c.region).where(api_tokens.c.api_token_id == api_token_id)
    async with database.connection() as connection:
        row = (await connection.execute(account)).one_or_none()
        token_region = (await connection.execute(token)).scalar_one_or_none()
    if row is None:
        return residency_of("", "zero"), AccountTerms()
    terms = AccountTerms(row.plan, row.limits, decode_models(row.disabled_models))
    return residency_of(row.region, row.retention, token_region), terms


async def delete(database: Database, account_id: str, *, context: ChangeContext = CLI) -> None:
    """Delete the account and revoke its API tokens, effective in every process within seconds. Usage and audit entries
    stay. Raises Missing."""
    now = context.clock.now()
    async with database.transaction() as connection:
        epoch = await decision_epoch.raise_epoch(connection)
        deleted = update(accounts).where(_is_existing(account_id))
        deleted = deleted.values(status="blocked", deleted_at=now, decision_epoch=epoch)
        if (await connection.execute(deleted)).rowcount == 0:
            raise Missing(f"account {account_id}")
        # A user's own tokens stay valid: they may give access to other accounts.
        is_account_s = (api_tokens.c.account_id == account_id) & (api_tokens.c.status != "revoked")
        is_account_s &= (api_tokens.c.kind == "account") | api_tokens.c.user_id.is_(None)
        revoked = update(api_tokens).where(is_account_s)
        await connection.execute(revoked.values(status="revoked", revoked_at=now, decision_epoch=epoch))
        await context.record(connection, "account.delete", account_id, account_id)
    await context.notify(account_id)


def checked_name(name: str) -> str:
    """Return the stripped name. Raises ValueError unless the name is printable and not too long."""
    name = name.strip()
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise ValueError(f"a name must have 1 to {MAX_NAME_LENGTH} printable characters")
    return name


async def _set(
    database: Database,
    account_id: str,
    values: dict[str, Any],
    action: str,
    detail: str,
    context: ChangeContext,
    expected: frozenset[str] | None = None,
) -> Account:
    """Set columns of an account. The change takes effect in every process within seconds."""
    async with database.transaction() as connection:
        # Every change of an account begins with this statement, which locks the epoch: the row below is current.
        epoch = await decision_epoch.raise_epoch(connection)
        if expected is not None:
            found = (
                (await connection.execute(_existing().where(accounts.c.account_id == account_id))).mappings().first()
            )
            if found is not None:
                check_version(_account(found).version, expected)
        changed = update(accounts).where(_is_existing(account_id)).values(**values, decision_epoch=epoch)
        row = (await connection.execute(changed.returning(*_COLUMNS))).mappings().one_or_none()
        if row is None:
            raise Missing(f"account {account_id}")
        await context.record(connection, action, account_id, account_id, detail)
    await context.notify(account_id)
    return _account(row)


def _existing() -> Select[Any]:
    return select(*_COLUMNS).where(accounts.c.deleted_at.is_(None))


def _is_existing(account_id: str) -> ColumnElement[bool]:
    return (accounts.c.account_id == account_id) & accounts.c.deleted_at.is_(None)


def _account(row: RowMapping) -> Account:
    text = row["settings"]
    settings = AccountSettings() if text is None else msgspec.json.decode(text, type=AccountSettings)
    return Account(**{**row, "settings": settings, "region": decode_rule(row["region"])})


def _encoded(settings: AccountSettings) -> str | None:
    return None if settings == AccountSettings() else msgspec.json.encode(settings).decode()
