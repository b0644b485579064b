"""Who did what, append-only and chained. An entry is written in the transaction of what it tells of: both or neither.

Each entry's digest covers the digest before it, so that one changed, moved or taken away breaks the chain. What the
chain alone cannot tell, that its newest entries are missing, is told by heads noted elsewhere: see `audit_heads.py`.
Ids and few words only: never a secret, never content.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, uuid7
from tenants.tables import audit_entries, audit_head

NO_DIGEST = bytes(32)
"""What the first entry of a chain stands on."""

_FORM = b"hearth audit entry 1"
_PAGE = 1000
_NEWEST = (audit_entries.c.at.desc(), audit_entries.c.audit_id.desc())


@dataclass(frozen=True)
class AuditEntry:
    """`who` is the actor (`cli`, or the id of a principal's API token or user); `subject_id` is the id of what was
    changed (an account, an API token …). `sequence` is the position in the hash chain, from 1."""

    audit_id: str
    at: datetime
    who: str
    action: str
    account_id: str
    subject_id: str
    detail: str
    sequence: int
    digest: bytes


@dataclass(frozen=True)
class Head:
    """The newest entry's place in the chain, 0 where there is none, and its digest."""

    sequence: int
    digest: bytes


async def append(
    connection: AsyncConnection,
    *,
    at: datetime,
    who: str,
    action: str,
    account_id: str,
    subject_id: str,
    detail: str = "",
) -> None:
    """Add one entry within the caller's transaction. From here to its end no other transaction appends: it is the last
    lock that one takes."""
    head = await _lock(connection)
    entry = AuditEntry(uuid7(), at, who, action, account_id, subject_id, detail, head.sequence + 1, b"")
    entry = replace(entry, digest=digest_of(entry, head.digest))
    await connection.execute(insert(audit_entries).values(asdict(entry)))
    await connection.execute(update(audit_head).values(sequence=entry.sequence, digest=entry.digest))


def digest_of(entry: AuditEntry, previous: bytes) -> bytes:
    """SHA-256 over the form's name, the digest before, the place, and every field with its length before it."""
    at = entry.at.astimezone(UTC).isoformat(timespec="microseconds")
    fields = (entry.audit_id, at, entry.who, entry.action, entry.account_id, entry.subject_id, entry.detail)
    parts = [_FORM, previous, entry.sequence.to_bytes(8, "big"), *(field.encode() for field in fields)]
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()


async def list_recent(
    database: Database, account_id: str, limit: int = 100, *, offset: int = 0, action: str = ""
) -> list[AuditEntry]:
    """Entries of an account, newest first; of one action, or of all whose name begins with it and a dot."""
    query = select(audit_entries).where(*_of(account_id, action)).order_by(*_NEWEST).limit(limit).offset(offset)
    async with database.connection() as connection:
        return [AuditEntry(**row) for row in (await connection.execute(query)).mappings()]


async def count(database: Database, account_id: str, *, action: str = "") -> int:
    """How many entries `list_recent` could come to."""
    query = select(func.count()).select_from(audit_entries).where(*_of(account_id, action))
    async with database.connection() as connection:
        return int((await connection.execute(query)).scalar_one())


async def read_head(database: Database) -> Head:
    async with database.connection() as connection:
        return Head(*(await connection.execute(select(audit_head.c.sequence, audit_head.c.digest))).one())


async def read_chain(database: Database) -> AsyncIterator[AuditEntry]:
    """Every chained entry in the chain's order, page by page."""
    last = 0
    while True:
        query = select(audit_entries).where(audit_entries.c.sequence > last)
        async with database.connection() as connection:
            found = await connection.execute(query.order_by(audit_entries.c.sequence).limit(_PAGE))
            entries = [AuditEntry(**row) for row in found.mappings()]
        for entry in entries:
            last = entry.sequence
            yield entry
        if len(entries) < _PAGE:
            return


async def _lock(connection: AsyncConnection) -> Head:
    """Lock the head row until the transaction ends and return its values."""
    locking = update(audit_head).values(sequence=audit_head.c.sequence).returning(*audit_head.c)
    row = (await connection.execute(locking)).one()
    return Head(row.sequence, row.digest)


def _of(account_id: str, action: str) -> list[Any]:
    conditions = [audit_entries.c.account_id == account_id]
    if action:
        is_kind = audit_entries.c.action.startswith(f"{action}.", autoescape=True)
        conditions.append((audit_entries.c.action == action) | is_kind)
    return conditions
