"""Changed rows of a list in the database, as events: the list is read every POLL_S seconds while a stream shows it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from storage.errors import StoreUnavailable

POLL_S = 2.0


class HasId(Protocol):
    """A row as the API shows it. Equal rows are unchanged."""

    @property
    def id(self) -> str: ...


async def row_changes(read: Callable[[], Awaitable[Sequence[HasId]]]) -> AsyncIterator[list[HasId]]:
    """Yield the rows that are new or changed since the read before, until closed. `read` returns the newest rows. Waits
    while the database is unavailable."""
    known: dict[str, HasId] | None = None
    while True:
        with contextlib.suppress(StoreUnavailable):
            rows = {row.id: row for row in await read()}
            changed = [row for row in rows.values() if known is not None and known.get(row.id) != row]
            known = rows
            if changed:
                yield changed
        await asyncio.sleep(POLL_S)
