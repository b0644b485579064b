"""API tokens as their owners manage them over the API: a user's tokens or an account's. A secret is shown once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, and_, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, new_id_hex
from storage.ephemeral import Ephemeral
from storage.errors import Missing
from telemetry.clock import SYSTEM_CLOCK, Clock
from tenants.accounts import checked_name
from tenants.audit import audit_log as audit
from tenants.credentials import decision_epoch
from tenants.credentials.api_token_text import keyed_hash, mint
from tenants.credentials.api_tokens import SHOWN_COLUMNS, ApiToken, CreatedToken, token_of
from tenants.credentials.conditions import AddressCondition, encode_condition
from tenants.credentials.policies import Policy, encode_policies
from tenants.credentials.principal import TokenKind
from tenants.residency import RegionRule, encode_rule
from tenants.tables import api_tokens

MAX_TOKENS: dict[TokenKind, int] = {"user": 50, "account": 500}


class TooManyTokens(Exception):
    """The owner has the maximum number of API tokens."""


@dataclass(frozen=True)
class TokenOwner:
    """The owner of tokens: an account (kind `account`) or a user. A `user_id` of "" stands for an account that acts as
    its own user. New tokens belong to `account_id`."""

    kind: TokenKind
    account_id: str
    user_id: str = ""

    def holds(self) -> ColumnElement[bool]:
        """Return the condition that selects the owner's tokens, except revoked ones."""
        is_open = (api_tokens.c.kind == self.kind) & (api_tokens.c.status != "revoked")
        if self.kind == "user" and self.user_id:
            return is_open & (api_tokens.c.user_id == self.user_id)
        return is_open & (api_tokens.c.account_id == self.account_id) & api_tokens.c.user_id.is_(None)


@dataclass(frozen=True)
class TokenSpec:
    """The properties of a token that its owner chooses. Times are aware."""

    name: str
    policies: tuple[Policy, ...]
    condition: AddressCondition | None = None
    not_before: datetime | None = None
    expires_at: datetime | None = None
    is_disabled: bool = False
    region: RegionRule | None = None
    models: tuple[str, ...] | None = None
    limits: str = ""

    def row(self) -> dict[str, Any]:
        """Return the columns. Raises ValueError for an invalid name."""
        return {
            "name": checked_name(self.name),
            "status": "disabled" if self.is_disabled else "active",
            "policies": encode_policies(self.policies),
            "condition": encode_condition(self.condition),
            "region": encode_rule(self.region),
            "models": None if self.models is None else msgspec.json.encode(self.models).decode(),
            "limits": self.limits,
            "not_before": self.not_before,
            "expires_at": self.expires_at,
        }


@dataclass(frozen=True)
class TokenPage:
    tokens: list[ApiToken]
    total_count: int


async def create(
    database: Database, pepper: bytes, holder: TokenOwner, spec: TokenSpec, *, who: str, clock: Clock = SYSTEM_CLOCK
) -> CreatedToken:
    """Create a token. Raises ValueError for an invalid name, TooManyTokens."""
    secret, lookup_id = mint(holder.kind)
    now = clock.now()
    row: dict[str, Any] = {
        "api_token_id": new_id_hex(),
        "account_id": holder.account_id,
        "kind": holder.kind,
        "user_id": holder.user_id or None,
        "created_at": now,
        "modified_at": now,
        "revoked_at": None,
        **spec.row(),
    }
    async with database.transaction() as connection:
        # Counted and written in one transaction, whose first statement makes others wait: see decision_epoch.
        await decision_epoch.raise_epoch(connection)
        count = select(func.count()).select_from(api_tokens).where(holder.holds())
        if (await connection.execute(count)).scalar_one() >= MAX_TOKENS[holder.kind]:
            raise TooManyTokens(f"at most {MAX_TOKENS[holder.kind]} {holder.kind} tokens")
        proof = {"lookup_id": lookup_id, "digest": keyed_hash(pepper, secret)}
        await connection.execute(insert(api_tokens).values(**row, **proof))
        await _note(connection, now, who, "api_token.create", row)
    return CreatedToken(token_of(row, now), secret)


async def find(
    database: Database, holder: TokenOwner, api_token_id: str, *, clock: Clock = SYSTEM_CLOCK
) -> ApiToken | None:
    query = select(*SHOWN_COLUMNS).where(holder.holds(), api_tokens.c.api_token_id == api_token_id)
    async with database.connection() as connection:
        row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else token_of(row, clock.now())


async def page(
    database: Database,
    holder: TokenOwner,
    *,
    page: int,
    per_page: int,
    is_descending: bool = False,
    has_expired: bool = True,
    clock: Clock = SYSTEM_CLOCK,
) -> TokenPage:
    """Return one page of tokens, oldest first unless `is_descending`; empty past the end. Pages count from 1."""
    now, wanted = clock.now(), holder.holds()
    if not has_expired:
        wanted = and_(wanted, or_(api_tokens.c.expires_at.is_(None), api_tokens.c.expires_at > now))
    order = (api_tokens.c.created_at, api_tokens.c.api_token_id)
    query = select(*SHOWN_COLUMNS).where(wanted).order_by(*(c.desc() if is_descending else c for c in order))
    async with database.connection() as connection:
        total = (await connection.execute(select(func.count()).select_from(api_tokens).where(wanted))).scalar_one()
        rows = await connection.execute(query.limit(per_page).offset((page - 1) * per_page))
        return TokenPage([token_of(row, now) for row in rows.mappings()], int(total))


async def replace(
    database: Database,
    holder: TokenOwner,
    api_token_id: str,
    spec: TokenSpec,
    *,
    who: str,
    ephemeral: Ephemeral | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> ApiToken:
    """Replace all properties of a token; effective everywhere within seconds. Raises Missing, ValueError for an
    invalid name."""
    values = spec.row() | {"modified_at": clock.now()}
    return await _change(database, holder, api_token_id, values, "api_token.update", who, ephemeral, clock)


async def roll(
    database: Database,
    pepper: bytes,
    holder: TokenOwner,
    api_token_id: str,
    *,
    who: str,
    ephemeral: Ephemeral | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> str:
    """Replace a token's secret; the old secret is rejected within seconds. Raises Missing."""
    query = select(api_tokens.c.lookup_id).where(holder.holds(), api_tokens.c.api_token_id == api_token_id)
    async with database.connection() as connection:
        lookup_id = (await connection.execute(query)).scalar_one_or_none()
    if lookup_id is None:
        raise Missing(f"API token {api_token_id}")
    # The lookup id stays: it is how verifiers find what they remember of the old secret.
    secret, _ = mint(holder.kind, lookup_id)
    values = {"digest": keyed_hash(pepper, secret), "modified_at": clock.now()}
    await _change(database, holder, api_token_id, values, "api_token.roll", who, ephemeral, clock)
    return secret


async def delete(
    database: Database,
    holder: TokenOwner,
    api_token_id: str,
    *,
    who: str,
    ephemeral: Ephemeral | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Revoke a token for good; it is rejected everywhere within seconds. Raises Missing."""
    values = {"status": "revoked", "revoked_at": clock.now()}
    await _change(database, holder, api_token_id, values, "api_token.revoke", who, ephemeral, clock)


async def _change(
    database: Database,
    holder: TokenOwner,
    api_token_id: str,
    values: Mapping[str, object],
    action: str,
    who: str,
    ephemeral: Ephemeral | None,
    clock: Clock,
) -> ApiToken:
    this = and_(holder.holds(), api_tokens.c.api_token_id == api_token_id)
    async with database.transaction() as connection:
        epoch = await decision_epoch.raise_epoch(connection)
        changed = update(api_tokens).where(this).values(**values, decision_epoch=epoch).returning(*SHOWN_COLUMNS)
        row = (await connection.execute(changed)).mappings().one_or_none()
        if row is None:
            raise Missing(f"API token {api_token_id}")
        await _note(connection, clock.now(), who, action, row)
    await decision_epoch.tell(ephemeral, api_token_id)
    return token_of(row, clock.now())


async def _note(connection: AsyncConnection, at: datetime, who: str, action: str, row: Mapping[Any, Any]) -> None:
    ids = {"account_id": row["account_id"], "subject_id": row["api_token_id"]}
    await audit.append(connection, at=at, who=who, action=action, **ids)
