"""The context in which accounts, users, credentials and budgets are changed: actor, clock and notification."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from storage.ephemeral import Ephemeral
from storage.errors import StoreUnavailable
from telemetry.clock import SYSTEM_CLOCK, Clock
from tenants.audit import audit_log
from tenants.credentials.decision_epoch import CHANNEL


@dataclass(frozen=True)
class ChangeContext:
    """`actor` is recorded in the audit log. With `ephemeral`, token verifiers learn of the change at once; without it,
    within a second."""

    actor: str = "cli"
    clock: Clock = SYSTEM_CLOCK
    ephemeral: Ephemeral | None = None

    async def record(
        self, connection: AsyncConnection, action: str, account_id: str, subject_id: str, detail: str = ""
    ) -> None:
        """Append an audit entry within the caller's transaction, as its last statement."""
        ids = {"account_id": account_id, "subject_id": subject_id}
        now = self.clock.now()
        await audit_log.append(connection, at=now, actor=self.actor, action=action, detail=detail, **ids)

    async def notify(self, changed_id: str) -> None:
        """Publish a hint about a committed change of an API token, account or user."""
        if self.ephemeral is not None:
            with contextlib.suppress(StoreUnavailable):
                await self.ephemeral.publish(CHANNEL, changed_id.encode())


CLI = ChangeContext()
"""Changes made with the `hearth` command while no Redis is configured."""
