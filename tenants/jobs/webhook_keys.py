"""Signing keys of an account's webhooks.

A key's secret is derived from the key's id and a platform secret, so no store contains it. A replaced key keeps
signing beside the new one for a while, so that receivers can change over.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database, uuid7
from tenants.audit import audit_log as audit
from tenants.tables import webhook_keys

SECRET_BYTES = 32


@dataclass(frozen=True)
class WebhookKey:
    """A signing key. `expires_at` is None until the key is replaced."""

    key_id: str
    account_id: str
    created_at: datetime
    expires_at: datetime | None

    def secret(self, platform_secret: bytes) -> bytes:
        """Return the secret with which receivers verify signatures."""
        text = f"webhook key: {self.account_id}/{self.key_id}"
        return hmac.digest(platform_secret, text.encode(), "sha256")[:SECRET_BYTES]


async def replace(database: Database, account_id: str, now: datetime, *, overlap_s: float, actor: str) -> WebhookKey:
    """Create a new key. The previous key keeps signing for `overlap_s`; older keys are deleted. Raises
    StoreUnavailable."""
    webhook_key = WebhookKey(uuid7(), account_id, now, None)
    key = webhook_keys.c
    async with database.transaction() as connection:
        await connection.execute(delete(webhook_keys).where(key.account_id == account_id, key.expires_at.is_not(None)))
        if overlap_s > 0:
            until = now + timedelta(seconds=overlap_s)
            await connection.execute(update(webhook_keys).where(key.account_id == account_id).values(expires_at=until))
        else:
            await connection.execute(delete(webhook_keys).where(key.account_id == account_id))
        await connection.execute(insert(webhook_keys).values(**vars(webhook_key)))
        await _note(connection, webhook_key, "webhook_key.replace", now, actor)
    return webhook_key


async def remove(database: Database, account_id: str, now: datetime, *, actor: str) -> bool:
    """Delete all keys of the account; return True if there were any. Raises StoreUnavailable."""
    gone = delete(webhook_keys).where(webhook_keys.c.account_id == account_id).returning(*webhook_keys.c)
    async with database.transaction() as connection:
        rows = (await connection.execute(gone)).mappings().all()
        for row in rows[:1]:
            await _note(connection, WebhookKey(**row), "webhook_key.remove", now, actor)
    return bool(rows)


async def signing(database: Database, account_id: str, now: datetime) -> list[WebhookKey]:
    """Return the account's current signing keys, the newest first. Raises StoreUnavailable."""
    key = webhook_keys.c
    query = select(webhook_keys).where(
        key.account_id == account_id, or_(key.expires_at.is_(None), key.expires_at > now)
    )
    async with database.connection() as connection:
        rows = (await connection.execute(query.order_by(key.expires_at.is_not(None), key.key_id))).mappings().all()
    return [WebhookKey(**row) for row in rows]


async def _note(connection: AsyncConnection, key: WebhookKey, action: str, now: datetime, actor: str) -> None:
    await audit.append(connection, at=now, actor=actor, action=action, account_id=key.account_id, subject_id=key.key_id)
