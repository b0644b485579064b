"""Who did what, append-only. An entry is written in the transaction of what it tells of: both are there, or neither.

Ids only: never a secret, never content.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, uuid7
from tenants.tables import audit_entries


@dataclass(frozen=True)
class AuditEntry:
    """`who` acted (`cli`, or a principal's API token id), on `subject_id` (an account's or an API token's id)."""

    audit_id: str
    at: datetime
    who: str
    action: str
    account_id: str
    subject_id: str


async def append(
    connection: AsyncConnection, *, at: datetime, who: str, action: str, account_id: str, subject_id: str
) -> None:
    """Add one entry within the caller's transaction."""
    entry = {"audit_id": uuid7(), "at": at, "who": who, "action": action}
    await connection.execute(insert(audit_entries).values(**entry, account_id=account_id, subject_id=subject_id))


async def list_recent(database: Database, account_id: str, limit: int = 100) -> list[AuditEntry]:
    """The newest entries of an account, newest first."""
    newest = audit_entries.c.at.desc(), audit_entries.c.audit_id.desc()
    query = select(audit_entries).where(audit_entries.c.account_id == account_id).order_by(*newest).limit(limit)
    async with database.connection() as connection:
        return [AuditEntry(**row) for row in (await connection.execute(query)).mappings()]
