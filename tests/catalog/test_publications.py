"""catalog/publications.py: leases, progress and ends of publications, on both databases."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from catalog import publications
from catalog.card import Prices
from catalog.publications import Publication, TooManyPublications
from storage.database import Database

NOW = datetime(2027, 1, 1, tzinfo=UTC)
LEASE_S = 30.0
LATER = NOW + timedelta(seconds=LEASE_S + 1)


async def submit(database: Database, name: str = "@cf/acme/tiny") -> Publication:
    return await publications.submit(database, "hub", "acme/tiny", name, NOW, hub_revision="main")


async def take(database: Database, owner: str, now: datetime = NOW) -> Publication | None:
    return await publications.take(database, owner, now, LEASE_S)


async def renew(database: Database, owner: str, id: str, done_bytes: int = 5, now: datetime = NOW) -> bool:
    progress = {"done_bytes": done_bytes, "total_bytes": 10, "detail": "fetching"}
    return await publications.renew(database, owner, id, now, LEASE_S, **progress)  # type: ignore[arg-type]


async def test_publication_is_leased_once_with_its_prices(database: Database):
    prices = Prices(Decimal("1.5"), Decimal(2))
    made = await publications.submit(database, "bucket", "uploads/x", "@cf/acme/tiny", NOW, prices=prices)
    taken = await asyncio.gather(*(take(database, owner) for owner in ("a", "b", "c")))
    [found] = [each for each in taken if each is not None]
    assert (found.publication_id, found.state, found.prices) == (made.publication_id, "running", prices)


async def test_expired_lease_is_taken_by_another_worker(database: Database):
    made = await submit(database)
    assert await take(database, "a")
    found = await take(database, "b", LATER)
    assert found is not None
    assert found.num_losses == 1
    assert not await renew(database, "a", made.publication_id, now=LATER), "the first worker has lost the lease"
    await publications.finish(database, "a", made.publication_id, "done", LATER, revision="a" * 64)
    current = await publications.find(database, made.publication_id)
    assert current is not None
    assert current.state == "running", "the end that the first worker reports has no effect"


async def test_progress_renews_the_lease(database: Database):
    made = await submit(database)
    await take(database, "a")
    assert await renew(database, "a", made.publication_id, 7, now=NOW + timedelta(seconds=20))
    assert await take(database, "b", LATER) is None
    found = await publications.find(database, made.publication_id)
    assert found is not None
    assert (found.done_bytes, found.total_bytes, found.detail) == (7, 10, "fetching")
    [changed] = await publications.changed_since(database, NOW)
    assert changed.publication_id == made.publication_id


async def test_waiting_publication_is_cancelled_at_once_and_a_running_one_by_its_worker(database: Database):
    waiting, running = await submit(database), await submit(database)
    assert (await publications.cancel(database, waiting.publication_id, NOW)).state == "cancelled"  # type: ignore[union-attr]
    assert (await take(database, "a")).publication_id == running.publication_id  # type: ignore[union-attr]
    cancelled = await publications.cancel(database, running.publication_id, NOW)
    assert cancelled is not None
    assert (cancelled.state, cancelled.is_cancelled) == ("running", True)
    assert not await renew(database, "a", running.publication_id)
    await publications.finish(database, "a", running.publication_id, "cancelled", NOW)
    assert await take(database, "a", LATER) is None
    assert await publications.cancel(database, "unknown", NOW) is None


async def test_released_publication_is_taken_again_without_a_loss(database: Database):
    made = await submit(database)
    await take(database, "a")
    await publications.release(database, "a", made.publication_id, NOW)
    found = await take(database, "b")
    assert found is not None
    assert found.num_losses == 0


async def test_waiting_and_stored_publications_are_limited(database: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(publications, "MAX_OPEN", 2)
    monkeypatch.setattr(publications, "MAX_KEPT", 1)
    made = [await submit(database) for _ in range(2)]
    with pytest.raises(TooManyPublications):
        await submit(database)
    for each in made:
        await publications.cancel(database, each.publication_id, NOW)
    await submit(database)
    found, total = await publications.list_all(database, 10)
    assert total == len(found) == 2, "the oldest of the two that are over is gone"
    assert made[0].publication_id not in {each.publication_id for each in found}
