"""Users: people who are members of accounts. Passwords and platform roles are in `operators.py`.

An account needs no user: an account without one acts as its own user, under its own id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, Delete, Update, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, new_id_hex
from storage.errors import Missing
from tenants.accounts import Account, checked_name, insert_account
from tenants.change_context import CLI, ChangeContext
from tenants.credentials import decision_epoch
from tenants.credentials.api_token_text import keyed_hash, mint_global_key
from tenants.credentials.roles import Role, parse_role
from tenants.tables import accounts, invitations, memberships, users

_EMAIL = re.compile(r"[^@\s\x00-\x1f\x7f]{1,64}@[A-Za-z0-9.-]{1,189}")
MIN_GLOBAL_KEY_CHARACTERS, MAX_GLOBAL_KEY_CHARACTERS = 32, 128


class Profile(Struct, frozen=True, omit_defaults=True):
    """Profile fields of the Cloudflare API; stored and returned only."""

    last_name: str | None = None
    country: str | None = None
    telephone: str | None = None
    zipcode: str | None = None


NO_PROFILE = Profile()


@dataclass(frozen=True)
class User:
    """One person."""

    user_id: str
    email: str
    name: str
    created_at: datetime
    profile: Profile = NO_PROFILE


@dataclass(frozen=True)
class CreatedUser:
    """A new user with the global key, which is not stored and cannot be shown again."""

    user: User
    global_key: str

    def __repr__(self) -> str:
        return f"CreatedUser(user={self.user!r}, global_key='********')"


_COLUMNS = [users.c[name] for name in ("user_id", "email", "name", "created_at", "profile")]


async def create(
    database: Database,
    pepper: bytes,
    email: str,
    account_ids: tuple[str, ...] = (),
    *,
    global_key: str = "",
    context: ChangeContext = CLI,
) -> CreatedUser:
    """Create a user who is a member of the given accounts, with a new global key unless one is given.

    Raises ValueError for an invalid email address or key, Conflict if the address exists, Missing for an unknown
    account.
    """
    email = checked_email(email)
    if global_key and not MIN_GLOBAL_KEY_CHARACTERS <= len(global_key) <= MAX_GLOBAL_KEY_CHARACTERS:
        raise ValueError(f"global_key must have {MIN_GLOBAL_KEY_CHARACTERS} to {MAX_GLOBAL_KEY_CHARACTERS} characters")
    key, now = global_key or mint_global_key(), context.clock.now()
    user = User(new_id_hex(), email, checked_name(email.partition("@")[0]), now)
    async with database.transaction() as connection:
        row = {name: getattr(user, name) for name in ("user_id", "email", "name", "created_at")}
        await connection.execute(insert(users).values(row | {"global_key_digest": keyed_hash(pepper, key)}))
        await context.record(connection, "user.create", "", user.user_id)
        for account_id in account_ids:
            await join_within(connection, user.user_id, account_id, "administrator", context)
    return CreatedUser(user, key)


def checked_email(email: str) -> str:
    """Return the email address in lower case. Raises ValueError if it is invalid."""
    if not _EMAIL.fullmatch(email):
        raise ValueError(f"email must have the form name@host and at most 254 characters (got {email!r})")
    return email.lower()


async def find(database: Database, user_id: str) -> User | None:
    async with database.connection() as connection:
        row = (await connection.execute(select(*_COLUMNS).where(users.c.user_id == user_id))).mappings().one_or_none()
    return None if row is None else user_of(row)


async def find_by_email(database: Database, email: str) -> User | None:
    async with database.connection() as connection:
        query = select(*_COLUMNS).where(users.c.email == email.lower())
        row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else user_of(row)


async def list_all(database: Database) -> list[User]:
    """Return all users, oldest first."""
    async with database.connection() as connection:
        query = select(*_COLUMNS).order_by(users.c.created_at, users.c.user_id)
        return [user_of(row) for row in (await connection.execute(query)).mappings()]


async def change(
    database: Database, user_id: str, name: str, profile: Profile, *, context: ChangeContext = CLI
) -> None:
    """Set a user's name and profile. Raises Missing, ValueError for an invalid name."""
    encoded = None if profile == NO_PROFILE else msgspec.json.encode(profile).decode()
    changed = update(users).where(users.c.user_id == user_id).values(name=checked_name(name), profile=encoded)
    async with database.transaction() as connection:
        if (await connection.execute(changed)).rowcount == 0:
            raise Missing(f"user {user_id}")
        await context.record(connection, "user.update", "", user_id)


async def account_ids_of(database: Database, user_id: str) -> list[str]:
    """Return the accounts that a user is a member of, oldest membership first."""
    query = select(memberships.c.account_id).join(accounts).order_by(memberships.c.created_at, accounts.c.account_id)
    query = query.where(memberships.c.user_id == user_id, accounts.c.deleted_at.is_(None))
    async with database.connection() as connection:
        return list((await connection.execute(query)).scalars())


async def roll_global_key(database: Database, pepper: bytes, user_id: str, *, context: ChangeContext = CLI) -> str:
    """Replace the global key; the old key is rejected within seconds. Raises Missing."""
    key = mint_global_key()
    async with database.transaction() as connection:
        await _change(connection, user_id, global_key_digest=keyed_hash(pepper, key))
        await context.record(connection, "user.roll_global_key", "", user_id)
    await context.notify(user_id)
    return key


async def create_account(database: Database, user_id: str, account: Account, *, context: ChangeContext = CLI) -> None:
    """Insert a new account with this user as a member, in one transaction. Raises Missing, Conflict."""
    async with database.transaction() as connection:
        await insert_account(connection, account, context)
        await join_within(connection, user_id, account.account_id, "administrator", context)
    await context.notify(user_id)


async def join(
    database: Database,
    user_id: str,
    account_id: str,
    *,
    role: Role = "administrator",
    context: ChangeContext = CLI,
) -> None:
    """Make a user a member of an account. Raises Missing, or Conflict if the user is a member already."""
    async with database.transaction() as connection:
        await join_within(connection, user_id, account_id, role, context)
    await context.notify(user_id)


async def set_role(
    database: Database,
    user_id: str,
    account_id: str,
    role: Role,
    *,
    known_role: Role | None = None,
    context: ChangeContext = CLI,
) -> None:
    """Change a member's role; it limits the user's credentials within seconds. Raises Missing, also if the member's
    current role is not `known_role`, if given."""
    changed = update(memberships).where(_is_membership(user_id, account_id)).values(role=role)
    if known_role is not None:
        changed = changed.where(memberships.c.role == known_role)
    await _change_membership(database, changed, user_id, account_id, "membership.role", role, context)


async def leave(database: Database, user_id: str, account_id: str, *, context: ChangeContext = CLI) -> None:
    """End a membership: the user's credentials lose access to the account within seconds. Raises Missing."""
    deleted = delete(memberships).where(_is_membership(user_id, account_id))
    await _change_membership(database, deleted, user_id, account_id, "membership.delete", "", context)


async def roles_of(database: Database, user_id: str) -> dict[str, Role]:
    """Return the user's roles by account id."""
    query = select(memberships.c.account_id, memberships.c.role).where(memberships.c.user_id == user_id)
    async with database.connection() as connection:
        return {account_id: parse_role(role) for account_id, role in await connection.execute(query)}


def membership_id(holder: str, account_id: str) -> str:
    """Return the API's id of a membership or invitation. `holder` is the user's email address, or the account's id if
    the account acts as its own user."""
    return hashlib.sha256(f"membership:{holder}:{account_id}".encode()).hexdigest()[:32]


def user_of(row: Mapping[Any, Any]) -> User:
    """Return the user of a row of the table."""
    text = row["profile"]
    profile = NO_PROFILE if text is None else msgspec.json.decode(text, type=Profile)
    return User(row["user_id"], row["email"], row["name"], row["created_at"], profile)


def _is_membership(user_id: str, account_id: str) -> ColumnElement[bool]:
    return (memberships.c.user_id == user_id) & (memberships.c.account_id == account_id)


async def join_within(
    connection: AsyncConnection, user_id: str, account_id: str, role: Role, context: ChangeContext
) -> None:
    """Make a user a member within the caller's transaction. Raises Missing, Conflict."""
    account = select(accounts.c.account_id).where(accounts.c.account_id == account_id, accounts.c.deleted_at.is_(None))
    if (await connection.execute(account)).scalar_one_or_none() is None:
        raise Missing(f"account {account_id}")
    await _change(connection, user_id)
    email = select(users.c.email).where(users.c.user_id == user_id).scalar_subquery()
    invited = (invitations.c.account_id == account_id) & (invitations.c.email == email)
    await connection.execute(delete(invitations).where(invited))
    row = {"user_id": user_id, "account_id": account_id, "created_at": context.clock.now(), "role": role}
    await connection.execute(insert(memberships).values(**row))
    await context.record(connection, "membership.create", account_id, user_id, role)


async def _change_membership(
    database: Database,
    statement: Update | Delete,
    user_id: str,
    account_id: str,
    action: str,
    detail: str,
    context: ChangeContext,
) -> None:
    async with database.transaction() as connection:
        await _change(connection, user_id)
        if (await connection.execute(statement)).rowcount == 0:
            raise Missing(f"membership of {user_id} in {account_id}")
        await context.record(connection, action, account_id, user_id, detail)
    await context.notify(user_id)


async def _change(connection: AsyncConnection, user_id: str, **values: object) -> None:
    """Set columns of a user and the epoch of the change. Raises Missing."""
    epoch = await decision_epoch.raise_epoch(connection)
    changed = update(users).where(users.c.user_id == user_id).values(**values, decision_epoch=epoch)
    if (await connection.execute(changed)).rowcount == 0:
        raise Missing(f"user {user_id}")
