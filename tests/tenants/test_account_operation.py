"""Changes of an account's operation on both databases."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from storage.database import Database
from storage.errors import Missing
from tenants import account_operation, accounts
from tenants.residency import RegionRule
from tenants.versions import VersionChanged


async def test_settings_are_changed_together(database: Database):
    account = await accounts.create(database, "Shop")
    found = await account_operation.find(database, account.account_id)
    assert found is not None
    wanted = structs.replace(found, plan="free", limits="account=5/60", region=RegionRule(("DE",)))
    await account_operation.change(database, account.account_id, wanted)
    assert await account_operation.find(database, account.account_id) == wanted
    changed = await accounts.find(database, account.account_id)
    assert changed is not None
    assert (changed.plan, changed.limits, changed.region) == ("free", "account=5/60", RegionRule(("DE",)))


async def test_only_one_of_concurrent_changes_of_a_version_succeeds(database: Database):
    account = await accounts.create(database, "Shop")
    found = await account_operation.find(database, account.account_id)
    assert found is not None
    wanted = [structs.replace(found, limits=f"account={number}/60") for number in range(1, 5)]
    expected = frozenset({found.version})
    changes = [account_operation.change(database, account.account_id, each, expected=expected) for each in wanted]
    outcomes = await asyncio.gather(*changes, return_exceptions=True)
    assert sum(isinstance(each, VersionChanged) for each in outcomes) == 3
    [winner] = [each for each in outcomes if not isinstance(each, BaseException)]
    assert await account_operation.find(database, account.account_id) == winner


async def test_concurrent_changes_of_disabled_models_are_all_kept(database: Database):
    account = await accounts.create(database, "Shop")
    models = [f"@cf/shop/model-{number}" for number in range(5)]
    await asyncio.gather(*(accounts.set_model_disabled(database, account.account_id, model, True) for model in models))
    assert await accounts.disabled_models(database, account.account_id) == set(models)
    _, terms = await accounts.call_terms(database, account.account_id, "x")
    assert terms.disabled_models == set(models)


async def test_deleted_account_cannot_be_changed(database: Database):
    account = await accounts.create(database, "Shop")
    found = await account_operation.find(database, account.account_id)
    assert found is not None
    await accounts.delete(database, account.account_id)
    assert await account_operation.find(database, account.account_id) is None
    with pytest.raises(Missing):
        await account_operation.change(database, account.account_id, found)
    with pytest.raises(Missing):
        await accounts.set_model_disabled(database, account.account_id, "@cf/a/b", True)
