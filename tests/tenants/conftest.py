"""Fixtures: an account, its tokens, and a clock that is advanced by hand."""

from __future__ import annotations

import pytest

from storage.database import Database
from tenants import accounts
from tests.tenants.hand_clock import HandClock
from tests.tenants.switchable_database import SwitchableDatabase

PEPPER = b"a pepper for tests, 32 bytes long"


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def switchable(database: Database) -> SwitchableDatabase:
    """Return the database of this test, which can be made unavailable."""
    return SwitchableDatabase(database)


@pytest.fixture
async def account_id(database: Database) -> str:
    return (await accounts.create(database, "Ada")).account_id
