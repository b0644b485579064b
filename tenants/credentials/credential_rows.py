"""Database rows of credentials: read a row, and evaluate the row to a Principal or a rejection.

Compares no secrets and caches nothing; `token_verifier.py` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec
from sqlalchemy import bindparam, or_, select, update
from sqlalchemy.engine import RowMapping
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database
from tenants.credentials.conditions import decode_condition
from tenants.credentials.policies import decode_policies, scopes_anywhere, scopes_on
from tenants.credentials.principal import AccountTerms, Grant, Principal, Refused
from tenants.credentials.roles import Role, bounded, operator_scopes, parse_role
from tenants.credentials.scopes import ALL_SCOPES
from tenants.disabled_models import decode_models
from tenants.residency import RegionRule, decode_rule, residency_of
from tenants.tables import accounts, api_token_epoch, api_tokens, memberships, users

_EPOCH = select(api_token_epoch.c.epoch).scalar_subquery().label("epoch")
# Built once: building a statement takes as long as running it.
_TOKEN = (
    select(
        api_tokens.c.api_token_id,
        api_tokens.c.account_id,
        api_tokens.c.user_id,
        api_tokens.c.kind,
        api_tokens.c.status,
        api_tokens.c.digest,
        api_tokens.c.policies,
        api_tokens.c.condition,
        api_tokens.c.not_before,
        api_tokens.c.expires_at,
        api_tokens.c.region,
        api_tokens.c.limits,
        api_tokens.c.models,
        accounts.c.status.label("account_status"),
        accounts.c.region.label("account_region"),
        accounts.c.retention,
        accounts.c.plan,
        accounts.c.limits.label("account_limits"),
        accounts.c.disabled_models,
        _EPOCH,
    )
    .join(accounts)
    .where(api_tokens.c.lookup_id == bindparam("lookup"))
)
_LAST_USE = api_tokens.c.last_used_at
_USED = (
    update(api_tokens)
    .where(api_tokens.c.api_token_id == bindparam("used_id"))
    .where(or_(_LAST_USE.is_(None), bindparam("used_at") > _LAST_USE))
    .values(last_used_at=bindparam("used_at"))
)
_USER = (
    select(users.c.user_id, users.c.global_key_digest.label("digest"), _EPOCH)
    .where(users.c.email == bindparam("address"))
    .where(users.c.global_key_digest.is_not(None))
)
_SESSION_USER = select(users.c.user_id, users.c.platform_role, users.c.session_generation, _EPOCH).where(
    users.c.user_id == bindparam("user")
)


@dataclass(frozen=True)
class Evaluation:
    """The result for a credential, and the lookup, token, account and user ids whose change invalidates it."""

    verdict: Principal | Refused
    dependency_ids: frozenset[str]


async def note_uses(database: Database, used: Mapping[str, datetime]) -> None:
    """Store when API tokens were last used, by token id. Raises StoreUnavailable."""
    rows = [{"used_id": api_token_id, "used_at": used[api_token_id]} for api_token_id in sorted(used)]
    if rows:
        async with database.transaction() as connection:
            await connection.execute(_USED, rows)


async def read_token(connection: AsyncConnection, lookup_id: str) -> RowMapping | None:
    """Return the row of an API token, with `digest` and the `epoch` at which the row was read."""
    return (await connection.execute(_TOKEN, {"lookup": lookup_id})).mappings().one_or_none()


async def read_user(connection: AsyncConnection, email: str) -> RowMapping | None:
    """Return the row of a user with a global key, with `digest` and `epoch`."""
    return (await connection.execute(_USER, {"address": email})).mappings().one_or_none()


async def read_session_user(connection: AsyncConnection, user_id: str) -> RowMapping | None:
    """Return the row of the user of a browser session, with `epoch`."""
    return (await connection.execute(_SESSION_USER, {"user": user_id})).mappings().one_or_none()


async def evaluate_token(connection: AsyncConnection, row: RowMapping, lookup_id: str) -> Evaluation:
    """Evaluate the row of a token whose secret was correct."""
    account_id, user_id = row["account_id"], row["user_id"] or ""
    condition, window = decode_condition(row["condition"]), (row["expires_at"], row["not_before"])
    dependency_ids = {lookup_id, row["api_token_id"], account_id, user_id} - {""}
    if row["status"] != "active":
        known = (row["api_token_id"], account_id, row["kind"], *window, condition)
        return Evaluation(Refused(row["status"], *known), frozenset(dependency_ids))
    terms = row["plan"], row["account_limits"], row["disabled_models"]
    own_account = _AccountState(row["account_status"], row["account_region"], row["retention"], *terms)
    policies = decode_policies(row["policies"])
    states = await _accounts_of_user(connection, user_id) if user_id else {account_id: own_account}
    dependency_ids |= states.keys()
    token_region = decode_rule(row["region"])
    grants = {other: _grant(scopes_on(policies, other), state, token_region) for other, state in states.items()}
    own = grants.pop(account_id, None)
    principal = Principal(
        account_id=account_id,
        api_token_id=row["api_token_id"],
        scopes=own.scopes if own else frozenset(),
        expires_at=row["expires_at"],
        is_account_blocked=row["account_status"] == "blocked",
        kind=row["kind"],
        user_id=user_id,
        not_before=row["not_before"],
        condition=condition,
        user_scopes=scopes_anywhere(policies),
        elsewhere={other: grant for other, grant in grants.items() if grant.scopes},
        account=own_account.terms(),
        limits=row["limits"],
        models=None if row["models"] is None else msgspec.json.decode(row["models"], type=frozenset[str]),
        residency=residency_of(row["account_region"], row["retention"], row["region"]),
    )
    return Evaluation(principal, frozenset(dependency_ids))


async def evaluate_user(connection: AsyncConnection, row: RowMapping) -> Evaluation:
    """Evaluate a user's global key: all scopes on each of the user's accounts."""
    user_id = row["user_id"]
    states = await _accounts_of_user(connection, user_id)
    principal = Principal(
        account_id="",
        api_token_id=user_id,
        scopes=frozenset(),
        user_id=user_id,
        user_scopes=ALL_SCOPES,
        elsewhere={account_id: _grant(ALL_SCOPES, state) for account_id, state in states.items()},
        acts_as_user=True,
    )
    return Evaluation(principal, frozenset({user_id, *states}))


async def evaluate_session_user(connection: AsyncConnection, row: RowMapping) -> Evaluation:
    """Evaluate a user's browser session: all scopes on each of the user's accounts, and those of the user's platform
    role on every account."""
    user_id, role = row["user_id"], row["platform_role"]
    states = await _accounts_of_user(connection, user_id)
    principal = Principal(
        account_id="",
        api_token_id=user_id,
        scopes=frozenset() if role is None else operator_scopes(parse_role(role)),
        user_id=user_id,
        user_scopes=ALL_SCOPES,
        elsewhere={account_id: _grant(ALL_SCOPES, state) for account_id, state in states.items()},
        acts_as_user=True,
        is_operator=role is not None,
    )
    return Evaluation(principal, frozenset({user_id, *states}))


@dataclass(frozen=True)
class _AccountState:
    """Values of an account's row that apply to every call on the account."""

    status: str
    region: str | None
    retention: str
    plan: str
    limits: str
    disabled_models: str | None
    role: Role = "administrator"

    def terms(self) -> AccountTerms:
        return AccountTerms(self.plan, self.limits, decode_models(self.disabled_models))


def _grant(scopes: frozenset[str], state: _AccountState, token_region: RegionRule | None = None) -> Grant:
    residency = residency_of(state.region, state.retention).narrowed(token_region)
    return Grant(bounded(scopes, state.role), state.status == "blocked", state.terms(), residency)


async def _accounts_of_user(connection: AsyncConnection, user_id: str) -> Mapping[str, _AccountState]:
    """Return the state of each account that the user is a member of, by account id."""
    names = ("account_id", "status", "region", "retention", "plan", "limits", "disabled_models")
    query = select(*(accounts.c[name] for name in names), memberships.c.role).join(memberships)
    query = query.where(memberships.c.user_id == user_id, accounts.c.deleted_at.is_(None))
    return {account_id: _AccountState(*state) for account_id, *state in await connection.execute(query)}
