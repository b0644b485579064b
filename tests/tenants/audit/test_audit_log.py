"""tenants/audit/: entries form one hash chain, and changes made directly in the database are detected."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text, update

from storage.database import Database
from storage.errors import Conflict
from tenants import accounts
from tenants.audit import audit_heads
from tenants.audit import audit_log as audit
from tenants.audit.audit_heads import NotedHead
from tenants.audit.audit_log import Head
from tenants.tables import audit_entries

KEY = b"a key for tests that is 32 bytes"
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


async def write(database: Database, *subjects: str) -> None:
    for subject in subjects:
        async with database.transaction() as connection:
            ids = {"account_id": "a" * 32, "subject_id": subject}
            await audit.append(connection, at=NOON, actor="cli", action="account.update", **ids)


async def tamper(database: Database, *statements: str) -> None:
    """Change rows as the database's owner can: drop the triggers first."""
    drop = (
        ["DROP TRIGGER audit_entries_no_update", "DROP TRIGGER audit_entries_no_delete"]
        if database.dialect == "sqlite"
        else ["DROP FUNCTION audit_entries_refuse() CASCADE"]
    )
    async with database.transaction() as connection:
        for statement in [*drop, *statements]:
            await connection.execute(text(statement))


async def test_untouched_chain_is_valid(database: Database):
    assert (await audit_heads.verify(database)).problems == []
    account = await accounts.create(database, "Ada")
    await accounts.set_blocked(database, account.account_id, True)
    found = await audit_heads.verify(database)
    assert (found.num_entries, found.problems) == (2, [])
    assert found.head == await audit.read_head(database)
    assert [entry.action for entry in await audit.list_recent(database, account.account_id)] == [
        "account.block", "account.create",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (["UPDATE audit_entries SET subject_id = 'other' WHERE sequence = 2"], "entry 2 (account.update) was changed"),
        (["UPDATE audit_entries SET detail = 'x' WHERE sequence = 4"], "entry 4 (account.update) was changed"),
        (["DELETE FROM audit_entries WHERE sequence = 2"], "entries 2 to 2 are missing"),
        (["DELETE FROM audit_entries WHERE sequence = 1"], "entries 1 to 1 are missing"),
        (["UPDATE audit_entries SET sequence = 9 WHERE sequence = 2",
          "UPDATE audit_entries SET sequence = 2 WHERE sequence = 3",
          "UPDATE audit_entries SET sequence = 3 WHERE sequence = 9"], "entry 2 (account.update) was changed"),
        (["DELETE FROM audit_entries WHERE sequence >= 3"], "entry 4 is missing, but is named by the head"),
        (["DELETE FROM audit_entries"], "entry 4 is missing"),
        (["UPDATE audit_head SET sequence = 3"], "entry 3 does not match the head in the database"),
    ],
)  # fmt: skip
async def test_changed_moved_or_deleted_entry_is_detected(database: Database, statements: list[str], says: str):
    await write(database, "one", "two", "three", "four")
    await tamper(database, *statements)
    problems = (await audit_heads.verify(database)).problems
    assert any(says in problem for problem in problems), problems


async def test_rewritten_entry_with_a_valid_digest_breaks_the_chain(database: Database):
    await write(database, "one", "two", "three")
    forged = dataclasses.replace(await entry(database, 2), subject_id="other")
    digest = audit.digest_of(forged, (await entry(database, 1)).digest)
    await tamper(database)
    async with database.transaction() as connection:
        changed = update(audit_entries).where(audit_entries.c.sequence == 2)
        await connection.execute(changed.values(subject_id="other", digest=digest))
    assert (await audit_heads.verify(database)).problems == ["entry 3 (account.update) was changed"]


async def test_truncated_or_rewritten_chain_does_not_match_a_recorded_head(database: Database):
    await write(database, "one", "two", "three")
    noted = [await noted_head(database)]
    two = await entry(database, 2)
    await tamper(database, "DELETE FROM audit_entries WHERE sequence = 3")
    async with database.transaction() as connection:
        head = text("UPDATE audit_head SET sequence = 2, digest = :digest")
        await connection.execute(head, {"digest": two.digest})
    assert (await audit_heads.verify(database)).problems == []  # not detectable from the database alone
    (problem,) = (await audit_heads.verify(database, noted, KEY)).problems
    assert problem == "entry 3 is missing, but is named by the head recorded at 2026-11-22T12:00:00+00:00"
    await write(database, "forged")
    (problem,) = (await audit_heads.verify(database, noted, KEY)).problems
    assert problem.startswith("entry 3 does not match the head recorded at")


async def test_recorded_head_needs_the_platform_key(database: Database, tmp_path: Path):
    await write(database, "one")
    noted = await noted_head(database)
    assert noted.is_proven(KEY)
    assert not noted.is_proven(KEY[::-1])
    forged = [NotedHead(noted.at, 9, noted.digest, noted.proof), NotedHead(noted.at, 1, "zz", noted.proof)]
    problems = (await audit_heads.verify(database, [noted, *forged], KEY)).problems
    assert problems == [f"recorded head {number} was not written with this platform's key" for number in (2, 3)]
    file = tmp_path / "heads"
    assert audit_heads.read_notes(file) == []
    line = audit_heads.note(Head(1, bytes(32)), NOON, KEY)
    file.write_bytes(line + line[:20])  # a line cut off by a full disk
    assert len(audit_heads.read_notes(file)) == 1
    file.write_bytes(line[:20] + b"\n" + line)
    with pytest.raises(ValueError, match="line 1 of"):
        audit_heads.read_notes(file)


async def test_database_rejects_updates_and_deletes_of_entries(database: Database):
    await write(database, "one")
    statements = ["UPDATE audit_entries SET actor = 'me'", "DELETE FROM audit_entries"]
    if database.dialect == "postgresql":
        statements.append("TRUNCATE audit_entries")
    for statement in statements:
        with pytest.raises(Conflict, match="append-only"):
            async with database.transaction() as connection:
                await connection.execute(text(statement))


async def test_rolled_back_entry_leaves_no_gap(database: Database):
    async def fail() -> None:
        async with database.transaction() as connection:
            ids = {"account_id": "a", "subject_id": "b"}
            await audit.append(connection, at=NOON, actor="cli", action="x", **ids)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    await write(database, "one")
    assert (await audit_heads.verify(database)).problems == []


async def test_concurrent_writers_make_one_chain(database: Database, database_url: str):
    """Each writer has its own connections, as separate processes do. A verification runs in between."""
    names = itertools.count()
    others = [Database.connect(database_url) for _ in range(4)]
    try:

        async def work(writer: Database) -> None:
            for _ in range(5):
                await write(writer, f"subject-{next(names)}")

        looks = [audit_heads.verify(database) for _ in range(3)]
        done = await asyncio.gather(*(work(writer) for writer in others), *looks)
    finally:
        for writer in others:
            await writer.close()
    assert [found.problems for found in done if found is not None] == [[]] * 3
    found = await audit_heads.verify(database)
    assert (found.num_entries, found.problems) == (20, [])


async def noted_head(database: Database) -> NotedHead:
    return msgspec.json.decode(audit_heads.note(await audit.read_head(database), NOON, KEY), type=NotedHead)


async def entry(database: Database, sequence: int) -> audit.AuditEntry:
    return [each async for each in audit.read_chain(database)][sequence - 1]
