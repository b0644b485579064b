"""The settings of an account that its operator controls: status, plan, limits, retention and region.

They are read and changed together, with a version. `accounts.py` has the commands that change one of them.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, structs
from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database
from storage.errors import Missing
from tenants.accounts import AccountStatus
from tenants.change_context import CLI, ChangeContext
from tenants.credentials import decision_epoch
from tenants.quota.limits import parse_overrides
from tenants.residency import RegionRule, RetentionRule, decode_rule, encode_rule
from tenants.tables import accounts
from tenants.versions import check_version, version_of

Plan = Literal["free", "paid", "enterprise"]


class AccountOperation(Struct, frozen=True):
    """The operator's settings of an account. `limits` are rules that replace the operator's defaults, or ""."""

    status: AccountStatus
    plan: Plan
    limits: str
    retention: RetentionRule
    region: RegionRule | None

    @property
    def version(self) -> str:
        return version_of(*structs.astuple(self))


_COLUMNS = [accounts.c[name] for name in AccountOperation.__struct_fields__]


async def find(database: Database, account_id: str) -> AccountOperation | None:
    """Return the settings, or None if the account does not exist. Raises StoreUnavailable."""
    async with database.connection() as connection:
        return await _read(connection, account_id)


async def change(
    database: Database,
    account_id: str,
    wanted: AccountOperation,
    *,
    expected: frozenset[str] | None = None,
    context: ChangeContext = CLI,
) -> AccountOperation:
    """Set all settings, effective in every process within seconds.

    Raises Missing; ValueError for invalid limits; VersionChanged if the current version is not one of `expected`.
    """
    parse_overrides(wanted.limits)
    async with database.transaction() as connection:
        # Every change of an account begins with this statement, which locks the epoch: the row below is current.
        epoch = await decision_epoch.raise_epoch(connection)
        current = await _read(connection, account_id)
        if current is None:
            raise Missing(f"account {account_id}")
        check_version(current.version, expected)
        values: dict[str, Any] = structs.asdict(wanted) | {"region": encode_rule(wanted.region)}
        changed = update(accounts).where(accounts.c.account_id == account_id)
        await connection.execute(changed.values(**values, decision_epoch=epoch))
        await context.record(connection, "account.operation", account_id, account_id, _difference(current, wanted))
    await context.notify(account_id)
    return wanted


async def _read(connection: AsyncConnection, account_id: str) -> AccountOperation | None:
    query = select(*_COLUMNS).where(accounts.c.account_id == account_id, accounts.c.deleted_at.is_(None))
    row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else AccountOperation(**{**row, "region": decode_rule(row["region"])})


def _difference(before: AccountOperation, after: AccountOperation) -> str:
    """Return the changed settings as text for the audit log."""
    changed = {name: value for name, value in structs.asdict(after).items() if value != getattr(before, name)}
    if "region" in changed:
        changed["region"] = encode_rule(after.region) or "anywhere"
    return ", ".join(f"{name}={value}" for name, value in changed.items())
