"""Stored responses and webhook signing keys, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from storage.database import Database
from tenants import accounts
from tenants.audit import audit_log as audit
from tenants.jobs import responses, webhook_keys
from tenants.jobs.responses import ResponseRow

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ID, OTHER_ID = "resp_" + "0" * 32, "resp_" + "1" * 32
OWN, OTHER = "a" * 32, "b" * 32


async def test_response_is_visible_to_its_account_until_it_expires_or_is_deleted(database: Database) -> None:
    queued = ResponseRow(ID, OWN, NOW + MINUTE, b"queued", None)
    done = ResponseRow(ID, OWN, NOW + MINUTE, b"done", b"turns")
    await responses.keep(database, [queued, ResponseRow(OTHER_ID, OWN, NOW + 2 * MINUTE, b"later", b"")])
    assert await responses.find(database, OWN, ID, NOW) == queued
    await responses.keep(database, [queued, done])
    assert await responses.find(database, OWN, ID, NOW) == done
    assert await responses.find(database, OTHER, ID, NOW) is None
    await responses.remove(database, OTHER, ID)
    assert await responses.find(database, OWN, ID, NOW) == done
    assert await responses.find(database, OWN, ID, NOW + MINUTE) is None
    assert [await responses.expire(database, NOW + MINUTE) for _ in range(2)] == [1, 0]
    await responses.remove(database, OWN, OTHER_ID)
    assert await responses.find(database, OWN, OTHER_ID, NOW) is None


async def test_replaced_webhook_key_keeps_signing_for_the_overlap_and_changes_are_audited(database: Database) -> None:
    account_id = (await accounts.create(database, "main")).account_id
    first = await webhook_keys.replace(database, account_id, NOW, overlap_s=60, actor="w")
    second = await webhook_keys.replace(database, account_id, NOW, overlap_s=60, actor="w")
    assert [key.key_id for key in await webhook_keys.signing(database, account_id, NOW)] == [
        second.key_id,
        first.key_id,
    ]
    assert [key.key_id for key in await webhook_keys.signing(database, account_id, NOW + MINUTE)] == [second.key_id]
    third = await webhook_keys.replace(database, account_id, NOW, overlap_s=60, actor="w")
    assert [key.key_id for key in await webhook_keys.signing(database, account_id, NOW)] == [
        third.key_id,
        second.key_id,
    ]
    fourth = await webhook_keys.replace(database, account_id, NOW, overlap_s=0, actor="w")
    assert [key.key_id for key in await webhook_keys.signing(database, account_id, NOW)] == [fourth.key_id]
    assert len({key.secret(b"s" * 32) for key in (first, second, third, fourth)}) == 4
    assert first.secret(b"s" * 32) != first.secret(b"t" * 32)
    assert await webhook_keys.signing(database, OTHER, NOW) == []
    assert not await webhook_keys.remove(database, OTHER, NOW, actor="w")
    assert await webhook_keys.remove(database, account_id, NOW, actor="w")
    assert await webhook_keys.signing(database, account_id, NOW) == []
    assert await audit.count(database, account_id, action="webhook_key.replace") == 4
    assert await audit.count(database, account_id, action="webhook_key.remove") == 1
