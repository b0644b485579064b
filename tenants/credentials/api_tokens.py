"""API tokens: create, list, disable, revoke. Only a keyed hash of the secret is stored; the secret is shown once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec
from sqlalchemy import Select, insert, select, update

from storage.database import Database, new_id_hex
from storage.ephemeral import Ephemeral
from storage.errors import Missing
from telemetry.clock import SYSTEM_CLOCK, Clock
from tenants.accounts import checked_name
from tenants.audit import audit_log as audit
from tenants.credentials import decision_epoch
from tenants.credentials.api_token_text import keyed_hash, mint
from tenants.credentials.conditions import AddressCondition, decode_condition
from tenants.credentials.policies import Policy, decode_policies, encode_policies, policy_on_account
from tenants.credentials.principal import TokenKind
from tenants.credentials.scopes import find_group
from tenants.residency import RegionRule, decode_rule
from tenants.tables import accounts, api_tokens, memberships

TokenStatus = Literal["active", "disabled", "revoked", "expired"]


@dataclass(frozen=True)
class ApiToken:
    """An API token without its secret."""

    api_token_id: str
    account_id: str
    name: str
    kind: TokenKind
    status: TokenStatus
    policies: tuple[Policy, ...]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    user_id: str | None = None
    condition: AddressCondition | None = None
    not_before: datetime | None = None
    modified_at: datetime | None = None
    region: RegionRule | None = None
    models: tuple[str, ...] | None = None
    limits: str = ""
    last_used_at: datetime | None = None

    @property
    def groups(self) -> tuple[str, ...]:
        """Ids of the permission groups that the policies name, without duplicates."""
        return tuple(dict.fromkeys(group for policy in self.policies for group in policy.groups))


@dataclass(frozen=True)
class CreatedToken:
    """A new API token with its secret, which is not stored and cannot be shown again."""

    token: ApiToken
    secret: str

    def __repr__(self) -> str:
        return f"CreatedToken(token={self.token!r}, secret='********')"


async def create(
    database: Database,
    pepper: bytes,
    account_id: str,
    name: str,
    groups: Iterable[str],
    expires_at: datetime | None = None,
    kind: TokenKind = "user",
    *,
    who: str = "cli",
    clock: Clock = SYSTEM_CLOCK,
) -> CreatedToken:
    """A new active API token. `groups` names permission groups by id or name; at least one.

    Raises ValueError for a bad name or group, or an expiry without a time zone; Missing for an unknown account.
    """
    group_ids = _group_ids(groups)
    if expires_at is not None and expires_at.tzinfo is None:
        raise ValueError("an expiry needs a time zone")
    secret, lookup_id = mint(kind)
    now = clock.now()
    api_token_id = new_id_hex()
    row: dict[str, Any] = {
        "api_token_id": api_token_id,
        "account_id": account_id,
        "name": checked_name(name),
        "kind": kind,
        "status": "active",
        "policies": encode_policies([policy_on_account(api_token_id, group_ids, account_id)]),
        "created_at": now,
        "expires_at": expires_at,
        "revoked_at": None,
    }
    async with database.transaction() as connection:
        is_account = select(accounts.c.account_id).where(accounts.c.account_id == account_id)
        if (await connection.execute(is_account)).scalar_one_or_none() is None:
            raise Missing(f"account {account_id}")
        proof = {"lookup_id": lookup_id, "digest": keyed_hash(pepper, secret)}
        await connection.execute(insert(api_tokens).values(**row, **proof))
        ids = {"account_id": account_id, "subject_id": row["api_token_id"]}
        await audit.append(connection, at=now, who=who, action="api_token.create", **ids)
    return CreatedToken(token_of(row, now), secret)


async def find(
    database: Database, account_id: str, api_token_id: str, *, clock: Clock = SYSTEM_CLOCK
) -> ApiToken | None:
    """Return one of the account's own tokens, including revoked ones."""
    query = _select(account_id).where(api_tokens.c.api_token_id == api_token_id)
    async with database.connection() as connection:
        row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else token_of(row, clock.now())


async def may_be_used_on(database: Database, account_id: str, api_token_id: str) -> bool:
    """Return True if the token belongs to the account or to a user who is a member of the account."""
    members = select(memberships.c.user_id).where(memberships.c.account_id == account_id)
    is_of_it = (api_tokens.c.account_id == account_id) | api_tokens.c.user_id.in_(members)
    query = select(api_tokens.c.api_token_id).where(api_tokens.c.api_token_id == api_token_id, is_of_it)
    async with database.connection() as connection:
        return (await connection.execute(query)).first() is not None


async def list_all(database: Database, account_id: str, *, clock: Clock = SYSTEM_CLOCK) -> list[ApiToken]:
    """Return the account's tokens, including revoked ones, oldest first."""
    query = _select(account_id).order_by(api_tokens.c.created_at, api_tokens.c.api_token_id)
    async with database.connection() as connection:
        return [token_of(row, clock.now()) for row in (await connection.execute(query)).mappings()]


async def revoke(
    database: Database,
    account_id: str,
    api_token_id: str,
    *,
    who: str = "cli",
    ephemeral: Ephemeral | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Refuse this token for good, in every process within seconds. Revoking again changes nothing.

    Raises Missing when the account has no such token.
    """
    now = clock.now()
    change = {"status": "revoked", "revoked_at": now}
    await _change(database, account_id, api_token_id, change, "api_token.revoke", who, ephemeral, now)


async def set_disabled(
    database: Database,
    account_id: str,
    api_token_id: str,
    is_disabled: bool,
    *,
    who: str = "cli",
    ephemeral: Ephemeral | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Disable or enable a token. A revoked token stays revoked. Raises Missing."""
    change = {"status": "disabled" if is_disabled else "active"}
    action = "api_token.disable" if is_disabled else "api_token.enable"
    await _change(database, account_id, api_token_id, change, action, who, ephemeral, clock.now())


async def _change(
    database: Database,
    account_id: str,
    api_token_id: str,
    change: Mapping[str, object],
    action: str,
    who: str,
    ephemeral: Ephemeral | None,
    now: datetime,
) -> None:
    """Change a token that is not revoked, and notify verifiers."""
    is_this = (api_tokens.c.account_id == account_id) & (api_tokens.c.api_token_id == api_token_id)
    async with database.transaction() as connection:
        status = (await connection.execute(select(api_tokens.c.status).where(is_this))).scalar_one_or_none()
        if status is None:
            raise Missing(f"API token {api_token_id}")
        epoch = await decision_epoch.raise_epoch(connection)
        is_open = is_this & (api_tokens.c.status != "revoked")
        done = await connection.execute(update(api_tokens).where(is_open).values(**change, decision_epoch=epoch))
        if done.rowcount:
            ids = {"account_id": account_id, "subject_id": api_token_id}
            await audit.append(connection, at=now, who=who, action=action, **ids)
    await decision_epoch.tell(ephemeral, api_token_id)


_PROOFS = ("lookup_id", "digest", "decision_epoch")
SHOWN_COLUMNS = [column for column in api_tokens.c if column.name not in _PROOFS]


def _select(account_id: str) -> Select[Any]:
    return select(*SHOWN_COLUMNS).where(api_tokens.c.account_id == account_id)


def token_of(row: Mapping[Any, Any], now: datetime) -> ApiToken:
    """Return the token of a row, with its status at `now`."""
    fields: dict[str, Any] = dict(row)
    fields["policies"] = decode_policies(fields["policies"])
    fields["condition"] = decode_condition(fields.get("condition"))
    fields["region"] = decode_rule(fields.get("region"))
    models = fields.get("models")
    fields["models"] = None if models is None else msgspec.json.decode(models, type=tuple[str, ...])
    token = ApiToken(**fields)
    if token.status == "active" and token.expires_at is not None and token.expires_at <= now:
        return ApiToken(**{**fields, "status": "expired"})
    return token


def _group_ids(groups: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    for text in groups:
        group = find_group(text)
        if group is None:
            raise ValueError(f"there is no permission group {text!r}")
        found[group.group_id] = None
    if not found:
        raise ValueError("an API token needs at least one permission group")
    return list(found)
