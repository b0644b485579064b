"""Usage maintenance: folds sums of minutes into hours and of hours into days, and deletes old entries.

Every gateway runs this at intervals; repeating it has no effect. Sums of days are kept forever. Deletion cannot be
undone, so a clock that jumped, or is ahead of the database's, deletes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from datetime import timedelta

from storage.database import Database
from storage.errors import StoreUnavailable
from telemetry.clock import Clock
from telemetry.steady_clock import SteadyClock
from tenants.usage import usage_sums

_log = logging.getLogger(__name__)

INTERVAL_S = 600.0


@dataclass(frozen=True)
class UsageRetention:
    """Days for which entries, sums of minutes and sums of hours are kept."""

    entries_days: int = 35
    minutes_days: int = 1
    hours_days: int = 92


class UsageMaintenance:
    """Maintenance by one process. `run` must run in the background."""

    def __init__(self, database: Database, clock: Clock, retention: UsageRetention) -> None:
        self._database = database
        self._clock = SteadyClock(clock)
        self._retention = retention

    async def run(self) -> None:
        """Run forever, at randomized intervals."""
        while True:
            try:
                await self.turn()
            except StoreUnavailable as error:
                _log.warning("usage maintenance failed", extra={"reason": str(error)})
            await asyncio.sleep(INTERVAL_S * random.uniform(0.75, 1.25))  # noqa: S311 - spreads gateways

    async def turn(self) -> None:
        """Fold and delete everything that is due. Raises StoreUnavailable."""
        now = min(self._clock.now(), await self._database.now())
        await usage_sums.fold(self._database, "minute", now - timedelta(days=self._retention.minutes_days))
        await usage_sums.fold(self._database, "hour", now - timedelta(days=self._retention.hours_days))
        while await usage_sums.forget_entries(self._database, now - timedelta(days=self._retention.entries_days)):
            pass
