"""tenants/credentials/api_tokens.py on both databases."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from storage.database import Database, metadata
from storage.ephemeral import Ephemeral
from storage.errors import Missing
from telemetry.bounded_cache import BoundedCache
from tenants import accounts
from tenants.audit import audit_log as audit
from tenants.change_context import ChangeContext
from tenants.credentials import api_tokens
from tenants.credentials.principal import Principal
from tenants.credentials.scopes import WORKERS_AI_GROUPS
from tenants.credentials.token_verifier import TokenVerifier
from tests.tenants.conftest import PEPPER
from tests.tenants.hand_clock import HandClock
from tests.tenants.token_status import set_disabled


async def test_token_is_found_and_listed_by_its_account_only(database: Database, account_id: str) -> None:
    other = (await accounts.create(database, "Bob")).account_id
    one = (await api_tokens.create(database, PEPPER, account_id, "one", WORKERS_AI_GROUPS)).token
    two = (await api_tokens.create(database, PEPPER, account_id, "two", ["Workers AI Read"], kind="account")).token
    assert await api_tokens.list_all(database, account_id) == [one, two]
    assert await api_tokens.find(database, account_id, one.api_token_id) == one
    assert (one.status, one.kind, one.groups) == ("active", "user", WORKERS_AI_GROUPS)
    assert await api_tokens.list_all(database, other) == []
    assert await api_tokens.find(database, other, one.api_token_id) is None
    with pytest.raises(Missing):
        await api_tokens.revoke(database, other, one.api_token_id)


async def test_revoked_token_stays_revoked(database: Database, account_id: str, clock: HandClock) -> None:
    token = (await api_tokens.create(database, PEPPER, account_id, "one", WORKERS_AI_GROUPS)).token
    await api_tokens.revoke(database, account_id, token.api_token_id, context=ChangeContext(clock=clock))
    revoked_at = clock.now()
    clock.pass_time(60)
    await api_tokens.revoke(database, account_id, token.api_token_id, context=ChangeContext(clock=clock))
    with pytest.raises(Missing):
        await set_disabled(database, account_id, token.api_token_id, False)
    found = await api_tokens.find(database, account_id, token.api_token_id)
    assert found is not None
    assert (found.status, found.revoked_at) == ("revoked", revoked_at)


async def test_every_change_of_a_token_has_one_audit_entry(database: Database, account_id: str) -> None:
    token = (
        await api_tokens.create(database, PEPPER, account_id, "one", WORKERS_AI_GROUPS, context=ChangeContext("ops"))
    ).token
    await set_disabled(database, account_id, token.api_token_id, True)
    await set_disabled(database, account_id, token.api_token_id, False)
    await api_tokens.revoke(database, account_id, token.api_token_id)
    await api_tokens.revoke(database, account_id, token.api_token_id)
    entries = await audit.list_recent(database, account_id)
    acts = ["api_token.revoke", "api_token.update", "api_token.update", "api_token.create"]
    assert [entry.action for entry in entries if entry.subject_id == token.api_token_id] == acts
    assert entries[-2].actor == "ops"


async def test_expired_token_is_listed_as_expired(database: Database, account_id: str, clock: HandClock) -> None:
    expires_at = clock.now() + timedelta(hours=1)
    await api_tokens.create(
        database, PEPPER, account_id, "one", WORKERS_AI_GROUPS, expires_at, context=ChangeContext(clock=clock)
    )
    statuses = []
    for _ in range(2):
        statuses += [token.status for token in await api_tokens.list_all(database, account_id, clock=clock)]
        clock.pass_time(3600)
    assert statuses == ["active", "expired"]


async def test_token_without_account_name_group_or_time_zone_is_rejected(
    sqlite_database: Database,
) -> None:
    account_id = (await accounts.create(sqlite_database, "Ada")).account_id
    with pytest.raises(Missing):
        await api_tokens.create(sqlite_database, PEPPER, "f" * 32, "one", WORKERS_AI_GROUPS)
    for groups in ([], ["Workers AI Admin"]):
        with pytest.raises(ValueError, match="permission group"):
            await api_tokens.create(sqlite_database, PEPPER, account_id, "one", groups)
    with pytest.raises(ValueError, match="printable"):
        await api_tokens.create(sqlite_database, PEPPER, account_id, "", WORKERS_AI_GROUPS)
    naive = datetime(2030, 1, 1)
    with pytest.raises(ValueError, match="time zone"):
        await api_tokens.create(sqlite_database, PEPPER, account_id, "one", WORKERS_AI_GROUPS, naive)
    assert await api_tokens.list_all(sqlite_database, account_id) == []


async def test_no_store_log_or_cache_contains_a_usable_secret(
    database: Database,
    account_id: str,
    redis_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    ephemeral = Ephemeral.connect(redis_url, timeout_s=30.0)
    listener = ephemeral.subscribe("api-tokens-changed")
    assert await anext(listener) == b""
    verifier = TokenVerifier(database, PEPPER)
    created = await api_tokens.create(database, PEPPER, account_id, "one", WORKERS_AI_GROUPS)
    assert isinstance(await verifier.verify(created.secret), Principal)
    memory = repr([vars(cache) for cache in vars(verifier).values() if isinstance(cache, BoundedCache)])
    await api_tokens.revoke(
        database, account_id, created.token.api_token_id, context=ChangeContext(ephemeral=ephemeral)
    )
    published = await anext(listener)
    await listener.aclose()
    await ephemeral.close()
    rows = ""
    async with database.connection() as connection:
        for table in metadata.sorted_tables:
            rows += repr((await connection.execute(select(table))).all())
    assert created.token.api_token_id in rows
    everything = (rows + caplog.text + memory + repr(created)).encode() + _bytes_of_files(tmp_path) + published
    # Half of the random part is enough to search for: the lookup id is stored, and the other half has 89 unknown bits.
    random_part = created.secret[15:45].encode()
    for piece in (created.secret.encode(), random_part, random_part[:15], random_part[15:]):
        assert piece not in everything


def _bytes_of_files(folder: Path) -> bytes:
    """Return the content of the SQLite file, its log and all other files of the test."""
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
