"""Audit entries for commands that change the platform itself. These entries belong to no account."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from catalog.card import ModelCard
    from storage.database import Database

PLATFORM = ""
"""The account id of the platform's own entries."""

_MAX_SUBJECT = 64  # characters, the width of the column; the detail has the complete subject


def audit_entry(action: str, subject_id: str, detail: str = "") -> Callable[[AsyncConnection], Awaitable[None]]:
    """Return a function that appends the entry within the transaction of the change."""

    async def append(connection: AsyncConnection) -> None:
        from telemetry.clock import SYSTEM_CLOCK
        from tenants.audit import audit_log as audit

        ids = {"account_id": PLATFORM, "subject_id": subject_id[:_MAX_SUBJECT]}
        await audit.append(connection, at=SYSTEM_CLOCK.now(), actor="cli", action=action, detail=detail, **ids)

    return append


async def append_published(connection: AsyncConnection, card: ModelCard) -> None:
    """Append the entry for a published model."""
    await audit_entry("model.publish", card.revision, card.name)(connection)


async def append_removed(connection: AsyncConnection, card: ModelCard) -> None:
    """Append the entry for a removed model."""
    await audit_entry("model.remove", card.revision, card.name)(connection)


async def append_entry(database: Database, action: str, subject_id: str, detail: str = "") -> None:
    """Append an entry in a transaction of its own. Raises StoreUnavailable."""
    async with database.transaction() as connection:
        await audit_entry(action, subject_id, detail)(connection)
