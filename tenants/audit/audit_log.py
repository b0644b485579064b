"""The audit log: append-only and hash-chained. An entry is written in the same transaction as the change it records.

Each entry's digest covers the previous digest, so a changed, moved or deleted entry breaks the chain. Missing newest
entries are detected by heads recorded elsewhere (`audit_heads.py`). Entries contain ids and short texts: never a
secret, never content.
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
"""The digest before the first entry."""

_FORM = b"hearth audit entry 1"
_PAGE = 1000
_NEWEST = (audit_entries.c.at.desc(), audit_entries.c.audit_id.desc())


@dataclass(frozen=True)
class AuditEntry:
    """One change. `actor` is `cli` or the id of the API token or user that made the change; `subject_id` is the id of
    the changed object (an account, an API token …). `sequence` is the position in the hash chain, from 1."""

    audit_id: str
    at: datetime
    actor: str
    action: str
    account_id: str
    subject_id: str
    detail: str
    sequence: int
    digest: bytes


@dataclass(frozen=True)
class Head:
    """The newest entry's sequence number (0 if there is none) and digest."""

    sequence: int
    digest: bytes


async def append(
    connection: AsyncConnection,
    *,
    at: datetime,
    actor: str,
    action: str,
    account_id: str,
    subject_id: str,
    detail: str = "",
) -> None:
    """Append one entry within the caller's transaction. No other transaction can append until it ends: take other
    locks first."""
    head = await _lock(connection)
    entry = AuditEntry(uuid7(), at, actor, action, account_id, subject_id, detail, head.sequence + 1, b"")
    entry = replace(entry, digest=digest_of(entry, head.digest))
    await connection.execute(insert(audit_entries).values(asdict(entry)))
    await connection.execute(update(audit_head).values(sequence=entry.sequence, digest=entry.digest))


def digest_of(entry: AuditEntry, previous: bytes) -> bytes:
    """Return the SHA-256 of the format's name, the previous digest, the sequence number and every field, each
    length-prefixed."""
    at = entry.at.astimezone(UTC).isoformat(timespec="microseconds")
    fields = (entry.audit_id, at, entry.actor, entry.action, entry.account_id, entry.subject_id, entry.detail)
    parts = [_FORM, previous, entry.sequence.to_bytes(8, "big"), *(field.encode() for field in fields)]
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()


async def list_recent(
    database: Database, account_id: str | None, limit: int = 100, *, offset: int = 0, action: str = ""
) -> list[AuditEntry]:
    """Return the entries of an account, or of all accounts for None, newest first: all, or those whose action is
    `action` or begins with `action` and a dot."""
    newest = _NEWEST if account_id is not None else (audit_entries.c.sequence.desc(),)
    query = select(audit_entries).where(*_of(account_id, action)).order_by(*newest).limit(limit).offset(offset)
    async with database.connection() as connection:
        return [AuditEntry(**row) for row in (await connection.execute(query)).mappings()]


async def count(database: Database, account_id: str | None, *, action: str = "") -> int:
    """Return the total number of entries that `list_recent` pages through."""
    query = select(func.count()).select_from(audit_entries).where(*_of(account_id, action))
    async with database.connection() as connection:
        return int((await connection.execute(query)).scalar_one())


async def read_head(database: Database) -> Head:
    async with database.connection() as connection:
        return Head(*(await connection.execute(select(audit_head.c.sequence, audit_head.c.digest))).one())


async def read_chain(database: Database) -> AsyncIterator[AuditEntry]:
    """Yield every entry in the order of the chain."""
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


def _of(account_id: str | None, action: str) -> list[Any]:
    conditions = [] if account_id is None else [audit_entries.c.account_id == account_id]
    if action:
        is_kind = audit_entries.c.action.startswith(f"{action}.", autoescape=True)
        conditions.append((audit_entries.c.action == action) | is_kind)
    return conditions
