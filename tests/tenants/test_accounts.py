"""tenants/accounts.py on both databases."""

from __future__ import annotations

import pytest

from storage.database import Database
from storage.errors import Conflict, Missing
from tenants import accounts
from tenants.audit import audit_log as audit
from tenants.change_context import ChangeContext
from tests.tenants.hand_clock import HandClock


async def test_new_account_is_found_and_listed(database: Database, clock: HandClock) -> None:
    first = await accounts.create(database, "  Zoë's lab ", context=ChangeContext(clock=clock))
    clock.pass_time(1)
    second = await accounts.create(database, "two", "0123456789abcdef" * 2, context=ChangeContext(clock=clock))
    assert first.name == "Zoë's lab"
    assert (first.status, first.plan, first.created_at.utcoffset() is not None) == ("active", "paid", True)
    assert len(first.account_id) == 32
    assert await accounts.find(database, first.account_id) == first
    assert await accounts.find(database, "f" * 32) is None
    assert await accounts.list_all(database) == [first, second]


@pytest.mark.parametrize("account_id", ["A" * 32, "a" * 31, "a" * 33, "", "g" * 32, "a" * 32 + "\n"])
async def test_invalid_account_id_is_rejected(sqlite_database: Database, account_id: str) -> None:
    with pytest.raises(ValueError, match="32 lowercase"):
        await accounts.create(sqlite_database, "x", account_id)


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "a\nb", "x" * 257, "\u202e"])
async def test_invalid_name_is_rejected(sqlite_database: Database, name: str) -> None:
    with pytest.raises(ValueError, match="printable"):
        await accounts.create(sqlite_database, name)


async def test_account_id_is_unique(database: Database) -> None:
    account = await accounts.create(database, "one")
    with pytest.raises(Conflict):
        await accounts.create(database, "two", account.account_id)
    assert [found.name for found in await accounts.list_all(database)] == ["one"]


async def test_account_is_blocked_and_unblocked_with_audit_entries(database: Database) -> None:
    account_id = (await accounts.create(database, "one", context=ChangeContext("setup"))).account_id
    await accounts.set_blocked(database, account_id, True, context=ChangeContext("ops"))
    blocked = await accounts.find(database, account_id)
    await accounts.set_blocked(database, account_id, False)
    unblocked = await accounts.find(database, account_id)
    assert blocked is not None
    assert unblocked is not None
    assert (blocked.status, unblocked.status) == ("blocked", "active")
    entries = await audit.list_recent(database, account_id)
    assert [(entry.actor, entry.action, entry.subject_id) for entry in entries] == [
        ("cli", "account.unblock", account_id),
        ("ops", "account.block", account_id),
        ("setup", "account.create", account_id),
    ]


async def test_unknown_account_cannot_be_blocked(database: Database) -> None:
    with pytest.raises(Missing):
        await accounts.set_blocked(database, "f" * 32, True)
    assert await audit.list_recent(database, "f" * 32) == []
