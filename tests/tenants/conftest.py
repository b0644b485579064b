"""An account, its tokens, and time moved by hand."""

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
    """The database of this test, which can be taken away."""
    return SwitchableDatabase(database)


@pytest.fixture
async def account_id(database: Database) -> str:
    return (await accounts.create(database, "Ada")).account_id
