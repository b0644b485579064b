"""Entries of the audit for what commands do to the platform itself: they belong to no account."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from catalog.card import ModelCard
    from storage.database import Database

PLATFORM = ""
"""Whose entries these are, where an account's have its id."""

_MAX_SUBJECT = 64  # characters, as the table has it; what is longer is whole in the detail


def noted(action: str, subject_id: str, detail: str = "") -> Callable[[AsyncConnection], Awaitable[None]]:
    """What writes the entry within the transaction of the change."""

    async def note(connection: AsyncConnection) -> None:
        from telemetry.clock import SYSTEM_CLOCK
        from tenants.audit import audit_log as audit

        ids = {"account_id": PLATFORM, "subject_id": subject_id[:_MAX_SUBJECT]}
        await audit.append(connection, at=SYSTEM_CLOCK.now(), who="cli", action=action, detail=detail, **ids)

    return note


async def note_published(connection: AsyncConnection, card: ModelCard) -> None:
    """A model has a new version."""
    await noted("model.publish", card.revision, card.name)(connection)


async def note_alone(database: Database, action: str, subject_id: str, detail: str = "") -> None:
    """The entry of what changes nothing in the database. Raises StoreUnavailable."""
    async with database.transaction() as connection:
        await noted(action, subject_id, detail)(connection)
