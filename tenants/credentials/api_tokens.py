"""API tokens: create, list, disable, revoke. Only a keyed hash of the secret is stored; the secret is shown once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec
from sqlalchemy import Select, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, new_id_hex
from storage.errors import Missing
from telemetry.clock import SYSTEM_CLOCK, Clock
from tenants.accounts import checked_name
from tenants.change_context import CLI, ChangeContext
from tenants.credentials import decision_epoch
from tenants.credentials.api_token_text import keyed_hash, mint
from tenants.credentials.conditions import AddressCondition, decode_condition
from tenants.credentials.policies import Policy, decode_policies, encode_policies, policy_on_account
from tenants.credentials.principal import TokenKind
from tenants.credentials.scopes import find_group
from tenants.credentials.token_restrictions import Restrictions
from tenants.residency import RegionRule, decode_rule
from tenants.tables import accounts, api_tokens, memberships
from tenants.versions import version_of

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
    def version(self) -> str:
        """The version of the properties and the secret."""
        return version_of(self.api_token_id, self.modified_at or self.created_at)

    @property
    def restrictions(self) -> Restrictions:
        return Restrictions(self.models, self.condition, self.expires_at, self.region, self.limits)

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
    context: ChangeContext = CLI,
) -> CreatedToken:
    """Create an active API token. `groups` names at least one permission group by id or name.

    Raises ValueError for an invalid name or group, or an expiry without a time zone; Missing for an unknown account.
    """
    group_ids = _group_ids(groups)
    if expires_at is not None and expires_at.tzinfo is None:
        raise ValueError("expires_at must have a time zone")
    api_token_id = new_id_hex()
    row = {
        "api_token_id": api_token_id,
        "account_id": account_id,
        "name": checked_name(name),
        "kind": kind,
        "status": "active",
        "policies": encode_policies([policy_on_account(api_token_id, group_ids, account_id)]),
        "created_at": context.clock.now(),
        "expires_at": expires_at,
        "revoked_at": None,
    }
    async with database.transaction() as connection:
        is_account = select(accounts.c.account_id).where(accounts.c.account_id == account_id)
        if (await connection.execute(is_account)).scalar_one_or_none() is None:
            raise Missing(f"account {account_id}")
        return await insert_token(connection, pepper, row, context)


async def insert_token(
    connection: AsyncConnection, pepper: bytes, row: Mapping[str, Any], context: ChangeContext
) -> CreatedToken:
    """Insert a token with a new secret within the caller's transaction."""
    secret, lookup_id = mint(row["kind"])
    proof = {"lookup_id": lookup_id, "digest": keyed_hash(pepper, secret)}
    await connection.execute(insert(api_tokens).values(**row, **proof))
    await context.record(connection, "api_token.create", row["account_id"], row["api_token_id"])
    return CreatedToken(token_of(row, row["created_at"]), secret)


async def find(
    database: Database, account_id: str, api_token_id: str, *, clock: Clock = SYSTEM_CLOCK
) -> ApiToken | None:
    """Return one of the account's own tokens, including revoked ones."""
    query = _select(account_id).where(api_tokens.c.api_token_id == api_token_id)
    async with database.connection() as connection:
        row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else token_of(row, clock.now())


async def find_by_id(database: Database, api_token_id: str, *, clock: Clock = SYSTEM_CLOCK) -> ApiToken | None:
    """Return a token of any owner."""
    query = select(*SHOWN_COLUMNS).where(api_tokens.c.api_token_id == api_token_id)
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


async def revoke(database: Database, account_id: str, api_token_id: str, *, context: ChangeContext = CLI) -> None:
    """Revoke a token permanently, effective in every process within seconds. Revoking it again has no effect.

    Raises Missing if the account has no such token.
    """
    is_this = (api_tokens.c.account_id == account_id) & (api_tokens.c.api_token_id == api_token_id)
    async with database.transaction() as connection:
        epoch = await decision_epoch.raise_epoch(connection)
        status = (await connection.execute(select(api_tokens.c.status).where(is_this))).scalar_one_or_none()
        if status is None:
            raise Missing(f"API token {api_token_id}")
        if status != "revoked":
            revoked = {"status": "revoked", "revoked_at": context.clock.now(), "decision_epoch": epoch}
            await connection.execute(update(api_tokens).where(is_this).values(**revoked))
            await context.record(connection, "api_token.revoke", account_id, api_token_id)
    await context.notify(api_token_id)


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
            raise ValueError(f"permission group {text!r} does not exist")
        found[group.group_id] = None
    if not found:
        raise ValueError("an API token must have at least one permission group")
    return list(found)
