"""Accounts: create, block, look up. An account is one tenant, named by 32 hexadecimal digits."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import insert, select, update

from storage.database import Database, new_id_hex
from storage.ephemeral import Ephemeral
from storage.errors import Missing, StoreUnavailable
from telemetry.clock import SYSTEM_CLOCK, Clock
from tenants import audit, decision_epoch
from tenants.tables import accounts

AccountStatus = Literal["active", "blocked"]

_ACCOUNT_ID = re.compile(r"[0-9a-f]{32}")
MAX_NAME_LENGTH = 256


@dataclass(frozen=True)
class Account:
    """One tenant."""

    account_id: str
    name: str
    status: AccountStatus
    plan: str
    created_at: datetime


_COLUMNS = [accounts.c[name] for name in ("account_id", "name", "status", "plan", "created_at")]


async def create(
    database: Database,
    name: str,
    account_id: str | None = None,
    *,
    plan: str = "standard",
    who: str = "cli",
    clock: Clock = SYSTEM_CLOCK,
) -> Account:
    """A new active account, with a fresh id unless one is given.

    Raises ValueError for a bad name or id, Conflict for an id that is taken.
    """
    if account_id is not None and not _ACCOUNT_ID.fullmatch(account_id):
        raise ValueError("an account id is 32 lowercase hexadecimal digits")
    account = Account(account_id or new_id_hex(), checked_name(name), "active", plan, clock.now())
    async with database.transaction() as connection:
        await connection.execute(
            insert(accounts).values({column: getattr(account, column.name) for column in _COLUMNS})
        )
        ids = {"account_id": account.account_id, "subject_id": account.account_id}
        await audit.append(connection, at=account.created_at, who=who, action="account.create", **ids)
    return account


async def find(database: Database, account_id: str) -> Account | None:
    async with database.connection() as connection:
        query = select(*_COLUMNS).where(accounts.c.account_id == account_id)
        row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else Account(**row)


async def list_all(database: Database) -> list[Account]:
    """Every account, oldest first."""
    async with database.connection() as connection:
        query = select(*_COLUMNS).order_by(accounts.c.created_at, accounts.c.account_id)
        return [Account(**row) for row in (await connection.execute(query)).mappings()]


async def block(
    database: Database,
    account_id: str,
    *,
    who: str = "cli",
    ephemeral: Ephemeral | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """From now on the account's calls are refused; its tokens still say whose they are. Raises Missing."""
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
    """A name for people: some printable text. Raises ValueError."""
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
    async with database.transaction() as connection:
        epoch = await decision_epoch.raise_epoch(connection)
        statement = update(accounts).where(accounts.c.account_id == account_id)
        done = await connection.execute(statement.values(status=status, decision_epoch=epoch))
        if done.rowcount == 0:
            raise Missing(f"account {account_id}")
        ids = {"account_id": account_id, "subject_id": account_id}
        await audit.append(connection, at=clock.now(), who=who, action=action, **ids)
    if ephemeral is not None:
        with contextlib.suppress(StoreUnavailable):  # a hint: whoever misses it sees the epoch a second later
            await ephemeral.publish(decision_epoch.CHANNEL, account_id.encode())
