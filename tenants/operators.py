"""Operators: users who sign in to the dashboard with a password or a one-time link, and may have a role on the whole
platform.

Every change that takes away access ends the user's sessions: `session_generation` is incremented, and sessions of
earlier generations are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, new_id_hex
from storage.errors import Missing
from telemetry.clock import SYSTEM_CLOCK, Clock
from tenants.accounts import checked_name
from tenants.change_context import CLI, ChangeContext
from tenants.credentials import decision_epoch
from tenants.credentials.api_token_text import keyed_hash, mint_link_token
from tenants.credentials.roles import OPERATOR_ROLES, Role, parse_role
from tenants.tables import sign_in_links, users
from tenants.users import checked_email

LINK_LIFE = timedelta(minutes=10)


@dataclass(frozen=True)
class Operator:
    """A user with what the user signs in with. `platform_role` is None for a user without a role on the platform."""

    user_id: str
    email: str
    name: str
    created_at: datetime
    platform_role: Role | None
    password_hash: str | None
    session_generation: int


_COLUMNS = [
    users.c[name]
    for name in ("user_id", "email", "name", "created_at", "platform_role", "password_hash", "session_generation")
]


async def find(database: Database, user_id: str) -> Operator | None:
    """Return a user, including users that cannot sign in."""
    return await _find(database, users.c.user_id == user_id)


async def find_by_email(database: Database, email: str) -> Operator | None:
    """Return a user, including users that cannot sign in."""
    return await _find(database, users.c.email == email.lower())


async def list_all(database: Database) -> list[Operator]:
    """Return all users with a password or a platform role, oldest first."""
    query = select(*_COLUMNS).where(or_(users.c.password_hash.is_not(None), users.c.platform_role.is_not(None)))
    async with database.connection() as connection:
        rows = (await connection.execute(query.order_by(users.c.created_at, users.c.user_id))).mappings()
        return [_operator(row) for row in rows]


async def add(
    database: Database,
    email: str,
    *,
    role: Role | None,
    password_hash: str | None,
    context: ChangeContext = CLI,
) -> str:
    """Give a user a platform role and a password, and return the user's id. A user that does not exist is created.

    None leaves the role or the password of an existing user unchanged. Raises ValueError for an invalid email or role.
    """
    if role is not None and role not in OPERATOR_ROLES:
        raise ValueError(f"the platform role must be {' or '.join(OPERATOR_ROLES)} (got {role!r})")
    email, user_id = checked_email(email), new_id_hex()
    fields = {"platform_role": role, "password_hash": password_hash}
    given = {name: value for name, value in fields.items() if value is not None}
    async with database.transaction() as connection:
        known = (await connection.execute(select(users.c.user_id).where(users.c.email == email))).scalar_one_or_none()
        if known is None:
            names = {"email": email, "name": checked_name(email.partition("@")[0])}
            epoch, now = await decision_epoch.raise_epoch(connection), context.clock.now()
            inserted = insert(users).values(user_id=user_id, created_at=now, decision_epoch=epoch, **names, **given)
            await connection.execute(inserted)
        else:
            user_id = known
            await _change(connection, user_id, **given)
        await context.record(connection, "operator.add", "", user_id, role or "")
    await context.notify(user_id)
    return user_id


async def set_password(database: Database, user_id: str, password_hash: str, *, context: ChangeContext = CLI) -> None:
    """Replace the password and end the user's sessions. Raises Missing."""
    async with database.transaction() as connection:
        await _change(connection, user_id, password_hash=password_hash)
        await connection.execute(delete(sign_in_links).where(sign_in_links.c.user_id == user_id))
        await context.record(connection, "operator.reset_password", "", user_id)
    await context.notify(user_id)


async def remove(database: Database, user_id: str, *, context: ChangeContext = CLI) -> None:
    """Take password and platform role from a user and end the user's sessions. Memberships, API tokens and the global
    key stay. Raises Missing."""
    async with database.transaction() as connection:
        await _change(connection, user_id, password_hash=None, platform_role=None)
        await connection.execute(delete(sign_in_links).where(sign_in_links.c.user_id == user_id))
        await context.record(connection, "operator.remove", "", user_id)
    await context.notify(user_id)


async def create_link(
    database: Database, pepper: bytes, user_id: str, *, clock: Clock = SYSTEM_CLOCK, context: ChangeContext = CLI
) -> str:
    """Return the token of a new sign-in link, which can be used once within LINK_LIFE. The user's earlier
    links become invalid. Raises Missing."""
    token, now = mint_link_token(), clock.now()
    async with database.transaction() as connection:
        found = select(users.c.user_id).where(users.c.user_id == user_id)
        if (await connection.execute(found)).scalar_one_or_none() is None:
            raise Missing(f"user {user_id}")
        old = or_(sign_in_links.c.user_id == user_id, sign_in_links.c.expires_at <= now)
        await connection.execute(delete(sign_in_links).where(old))
        row = {"digest": keyed_hash(pepper, token), "user_id": user_id, "expires_at": now + LINK_LIFE}
        await connection.execute(insert(sign_in_links).values(row))
        await context.record(connection, "operator.create_link", "", user_id)
    return token


async def use_link(database: Database, pepper: bytes, token: str, *, clock: Clock = SYSTEM_CLOCK) -> Operator | None:
    """Return the user of a sign-in link and delete the link; None if it is unknown, used or expired."""
    has_digest = sign_in_links.c.digest == keyed_hash(pepper, token)
    async with database.connection() as connection:  # an unknown token must not occupy SQLite's single writer
        if (await connection.execute(select(sign_in_links.c.user_id).where(has_digest))).first() is None:
            return None
    used = delete(sign_in_links).where(has_digest)
    async with database.transaction() as connection:
        row = (await connection.execute(used.returning(*sign_in_links.c))).mappings().one_or_none()
        if row is None or row["expires_at"] <= clock.now():
            return None
        found = await connection.execute(select(*_COLUMNS).where(users.c.user_id == row["user_id"]))
        return _operator(found.mappings().one())


async def _find(database: Database, condition: Any) -> Operator | None:
    async with database.connection() as connection:
        row = (await connection.execute(select(*_COLUMNS).where(condition))).mappings().one_or_none()
    return None if row is None else _operator(row)


def _operator(row: Mapping[Any, Any]) -> Operator:
    role = row["platform_role"]
    return Operator(**{**row, "platform_role": None if role is None else parse_role(role)})


async def _change(connection: AsyncConnection, user_id: str, **values: object) -> None:
    """Set columns of a user and the epoch of the change, and end the user's sessions. Raises Missing."""
    values["decision_epoch"] = await decision_epoch.raise_epoch(connection)
    values["session_generation"] = users.c.session_generation + 1
    if (await connection.execute(update(users).where(users.c.user_id == user_id).values(**values))).rowcount == 0:
        raise Missing(f"user {user_id}")
