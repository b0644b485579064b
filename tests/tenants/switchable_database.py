"""A real database that a test can make unavailable, and that counts its queries."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from sqlalchemy.ext.asyncio import AsyncConnection

from storage.database import Database
from storage.errors import StoreUnavailable


class SwitchableDatabase(Database):
    """A database that fails every use while `is_unavailable` is set, as in an outage."""

    def __init__(self, real: Database) -> None:
        super().__init__(real._engine)
        self.is_unavailable = False
        self.num_uses = 0

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        self._use()
        async with super().transaction() as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[AsyncConnection]:
        self._use()
        async with super().connection() as connection:
            yield connection

    def _use(self) -> None:
        self.num_uses += 1
        if self.is_unavailable:
            raise StoreUnavailable("database: made unavailable by the test")
