"""API tokens as their owners manage them over the API: the tokens of a user or of an account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, and_, func, or_, select, update

from storage.database import Database, new_id_hex
from storage.errors import Missing
from telemetry.clock import SYSTEM_CLOCK, Clock
from tenants.accounts import checked_name
from tenants.change_context import CLI, ChangeContext
from tenants.credentials import decision_epoch
from tenants.credentials.api_token_text import keyed_hash, mint
from tenants.credentials.api_tokens import SHOWN_COLUMNS, ApiToken, CreatedToken, insert_token, token_of
from tenants.credentials.conditions import AddressCondition, encode_condition
from tenants.credentials.policies import Policy, encode_policies
from tenants.credentials.principal import TokenKind
from tenants.credentials.token_restrictions import Restrictions
from tenants.residency import RegionRule, encode_rule
from tenants.tables import api_tokens
from tenants.versions import check_version

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

    @property
    def restrictions(self) -> Restrictions:
        return Restrictions(self.models, self.condition, self.expires_at, self.region, self.limits)

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
    database: Database, pepper: bytes, owner: TokenOwner, spec: TokenSpec, *, context: ChangeContext = CLI
) -> CreatedToken:
    """Create a token. Raises ValueError for an invalid name, TooManyTokens."""
    now = context.clock.now()
    row: dict[str, Any] = {
        "api_token_id": new_id_hex(),
        "account_id": owner.account_id,
        "kind": owner.kind,
        "user_id": owner.user_id or None,
        "created_at": now,
        "modified_at": now,
        "revoked_at": None,
        **spec.row(),
    }
    async with database.transaction() as connection:
        # Raising the epoch locks its row, so that concurrent creations are counted one after the other.
        await decision_epoch.raise_epoch(connection)
        count = select(func.count()).select_from(api_tokens).where(owner.holds())
        if (await connection.execute(count)).scalar_one() >= MAX_TOKENS[owner.kind]:
            raise TooManyTokens(f"a {owner.kind} can have at most {MAX_TOKENS[owner.kind]} API tokens")
        return await insert_token(connection, pepper, row, context)


async def find(
    database: Database, owner: TokenOwner, api_token_id: str, *, clock: Clock = SYSTEM_CLOCK
) -> ApiToken | None:
    query = select(*SHOWN_COLUMNS).where(owner.holds(), api_tokens.c.api_token_id == api_token_id)
    async with database.connection() as connection:
        row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else token_of(row, clock.now())


async def page(
    database: Database,
    owner: TokenOwner,
    *,
    page: int,
    per_page: int,
    is_descending: bool = False,
    has_expired: bool = True,
    clock: Clock = SYSTEM_CLOCK,
) -> TokenPage:
    """Return one page of tokens, oldest first unless `is_descending`; empty past the end. Pages count from 1."""
    now, wanted = clock.now(), owner.holds()
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
    owner: TokenOwner,
    api_token_id: str,
    spec: TokenSpec,
    *,
    expected: frozenset[str] | None = None,
    context: ChangeContext = CLI,
) -> ApiToken:
    """Replace all properties of a token; effective everywhere within seconds.

    Raises Missing; ValueError for an invalid name; VersionChanged if the current version is not one of `expected`.
    """
    values = spec.row() | {"modified_at": context.clock.now()}
    return await _change(database, owner, api_token_id, values, "api_token.update", context, expected)


async def roll(
    database: Database, pepper: bytes, owner: TokenOwner, api_token_id: str, *, context: ChangeContext = CLI
) -> str:
    """Replace a token's secret; the old secret is rejected within seconds. Raises Missing."""
    query = select(api_tokens.c.lookup_id).where(owner.holds(), api_tokens.c.api_token_id == api_token_id)
    async with database.connection() as connection:
        lookup_id = (await connection.execute(query)).scalar_one_or_none()
    if lookup_id is None:
        raise Missing(f"API token {api_token_id}")
    # The lookup id stays the same: verifiers use it to find their cached result of the old secret.
    secret, _ = mint(owner.kind, lookup_id)
    values = {"digest": keyed_hash(pepper, secret), "modified_at": context.clock.now()}
    await _change(database, owner, api_token_id, values, "api_token.roll", context)
    return secret


async def delete(database: Database, owner: TokenOwner, api_token_id: str, *, context: ChangeContext = CLI) -> None:
    """Revoke a token permanently; it is rejected everywhere within seconds. Raises Missing."""
    values = {"status": "revoked", "revoked_at": context.clock.now()}
    await _change(database, owner, api_token_id, values, "api_token.revoke", context)


async def _change(
    database: Database,
    owner: TokenOwner,
    api_token_id: str,
    values: Mapping[str, object],
    action: str,
    context: ChangeContext,
    expected: frozenset[str] | None = None,
) -> ApiToken:
    this = and_(owner.holds(), api_tokens.c.api_token_id == api_token_id)
    async with database.transaction() as connection:
        epoch = await decision_epoch.raise_epoch(connection)  # holds the lock of all changes
        if expected is not None:
            found = (await connection.execute(select(*SHOWN_COLUMNS).where(this))).mappings().one_or_none()
            if found is not None:
                check_version(token_of(found, context.clock.now()).version, expected)
        changed = update(api_tokens).where(this).values(**values, decision_epoch=epoch).returning(*SHOWN_COLUMNS)
        row = (await connection.execute(changed)).mappings().one_or_none()
        if row is None:
            raise Missing(f"API token {api_token_id}")
        await context.record(connection, action, row["account_id"], api_token_id)
    await context.notify(api_token_id)
    return token_of(row, context.clock.now())
