"""catalog/registry.py: built-in and published models, aliases, and database outages."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from catalog import registry as registry_module
from catalog.aliases import set_alias
from catalog.builtin import builtin_models
from catalog.card import ModelCard
from catalog.listed import listed_models
from catalog.registry import Registry
from catalog.rows import change, read_number, write_alias, write_card
from catalog.schemas import input_schema
from storage.database import Database
from tests.catalog.cards import CREATED_AT, chat_card, embedder_card
from tests.waiting import wait_until

BUILTIN = chat_card("@cf/hearth/spark")


async def put(database: Database, card: ModelCard) -> None:
    async with change(database) as connection:
        await write_card(connection, card, CREATED_AT)


def test_built_in_models_need_no_database() -> None:
    registry = Registry(None)
    for name, model in builtin_models().items():
        found = registry.find(name)
        assert found is not None
        assert (found.card, found.requested_name, found.alias_of) == (model.card, name, None)
    assert registry.find("@cf/acme/chat") is None


async def test_published_card_is_found_after_a_refresh(database: Database) -> None:
    registry = Registry(database, builtin_cards=[BUILTIN])
    await put(database, embedder_card("@cf/acme/embed"))
    assert registry.find("@cf/acme/embed") is None
    assert await registry.refresh()
    found = registry.find("@cf/acme/embed")
    assert found is not None
    assert found.card == embedder_card("@cf/acme/embed")
    assert [card.name for card in registry.all()] == ["@cf/acme/embed", "@cf/hearth/spark"]


async def test_refresh_reads_rows_only_after_a_change(database: Database) -> None:
    registry = Registry(database, builtin_cards=[BUILTIN])
    assert await registry.refresh()
    assert not await registry.refresh()
    await put(database, chat_card())
    assert await registry.refresh()
    assert not await registry.refresh()


async def test_new_version_replaces_the_old_one(database: Database) -> None:
    registry = Registry(database, builtin_cards=[])
    await put(database, chat_card(context_window=1024))
    await put(database, chat_card(context_window=4096))
    await registry.refresh()
    assert [card.context_window for card in registry.all()] == [4096]


async def test_row_cannot_replace_a_built_in_model(sqlite_database: Database) -> None:
    registry = Registry(sqlite_database, builtin_cards=[BUILTIN])
    await put(sqlite_database, chat_card("@cf/hearth/spark", description="an impostor"))
    async with change(sqlite_database) as connection:
        await write_alias(connection, "@cf/hearth/spark", "@cf/acme/other", CREATED_AT)
    await put(sqlite_database, chat_card("@cf/acme/other"))
    await registry.refresh()
    found = registry.find("@cf/hearth/spark")
    assert found is not None
    assert found.card == BUILTIN


async def test_alias_resolves_to_its_model_with_the_requested_name(database: Database) -> None:
    registry = Registry(database, builtin_cards=[BUILTIN])
    names = {BUILTIN.name}
    await set_alias(database, "@cf/meta/llama-3.1-8b-instruct", BUILTIN.name, builtin_names=names)
    await set_alias(database, "@cf/acme/second", "@cf/meta/llama-3.1-8b-instruct", builtin_names=names)
    await registry.refresh()
    for name in ("@cf/meta/llama-3.1-8b-instruct", "@cf/acme/second"):
        found = registry.find(name)
        assert found is not None
        assert (found.card, found.requested_name, found.alias_of) == (BUILTIN, name, BUILTIN.name)
    assert [card.name for card in registry.all()] == [BUILTIN.name]


async def test_alias_of_a_listed_model_has_its_schema(sqlite_database: Database) -> None:
    listed = listed_models()
    registry = Registry(sqlite_database, builtin_cards=[BUILTIN], listed=listed)
    by_key, chat, other_task = "@cf/openai/gpt-oss-20b", "@cf/moonshotai/kimi-k2.6", "@cf/baai/bge-m3"
    for name in (by_key, chat, other_task):
        await set_alias(sqlite_database, name, BUILTIN.name, builtin_names={BUILTIN.name})
    await registry.refresh()
    found = {name: resolved.card for name in (by_key, chat, other_task) if (resolved := registry.find(name))}
    for name, schema in ((by_key, "text_generation_responses"), (chat, "openai_chat")):
        shape = {"schema": schema, "native_shape": "chat_completion"}
        assert found[name] == msgspec.structs.replace(BUILTIN, **shape)
        assert input_schema(found[name]) is not input_schema(BUILTIN)
    assert found[other_task] is BUILTIN


async def test_unreadable_row_or_alias_is_skipped(sqlite_database: Database) -> None:
    await put(sqlite_database, chat_card())
    async with change(sqlite_database) as connection:
        insert = "INSERT INTO published_models VALUES ('@cf/acme/odd', 'r', '{}', '2026-11-20')"
        await connection.execute(text(insert))
        for name, target in (("@cf/a/x", "@cf/a/y"), ("@cf/a/y", "@cf/a/x"), ("@cf/a/z", "@cf/a/none")):
            await write_alias(connection, name, target, CREATED_AT)
    registry = Registry(sqlite_database, builtin_cards=[])
    await registry.refresh()
    assert [card.name for card in registry.all()] == ["@cf/acme/chat"]
    assert all(registry.find(f"@cf/a/{name}") is None for name in "xyz")


async def test_unknown_name_is_looked_up_in_shared_reads(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(database, builtin_cards=[BUILTIN])
    numbers = []

    async def counted(connection: AsyncConnection) -> int:
        numbers.append(await read_number(connection))
        return numbers[-1]

    monkeypatch.setattr(registry_module, "read_number", counted)
    assert await registry.look_up("@cf/acme/chat") is None
    await put(database, chat_card())
    found = await asyncio.gather(*[registry.look_up(name) for name in ["@cf/acme/chat", "@cf/acme/none"] * 50])
    assert [each is not None for each in found] == [True, False] * 50
    assert len(numbers) == 2
    assert await registry.look_up("@cf/acme/chat") == await registry.look_up("@cf/acme/chat")
    assert await registry.look_up(BUILTIN.name) == registry.find(BUILTIN.name)
    assert len(numbers) == 2, "a name that is there is a memory read"


async def test_lookup_during_a_read_waits_for_a_later_read(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(sqlite_database, builtin_cards=[BUILTIN])
    has_read, may_end = asyncio.Event(), asyncio.Event()

    async def held(connection: AsyncConnection) -> int:
        number = await read_number(connection)
        has_read.set()
        await may_end.wait()
        return number

    monkeypatch.setattr(registry_module, "read_number", held)
    watch = asyncio.create_task(registry.refresh())
    await has_read.wait()
    await put(sqlite_database, chat_card())
    lookup = asyncio.create_task(registry.look_up("@cf/acme/chat"))
    asyncio.get_running_loop().call_soon(may_end.set)
    found = await lookup
    assert found is not None
    await watch


async def test_lookup_finds_nothing_if_the_database_is_unavailable_or_silent(
    tmp_path: Path, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Database.connect(f"sqlite://{tmp_path / 'not' / 'there'}/hearth.db")
    assert await Registry(away, builtin_cards=[BUILTIN]).look_up("@cf/acme/chat") is None
    await away.close()

    async def silent(_connection: AsyncConnection) -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(registry_module, "read_number", silent)
    monkeypatch.setattr(registry_module, "LOOK_UP_TIMEOUT_S", 0.01)
    assert await Registry(sqlite_database, builtin_cards=[BUILTIN]).look_up("@cf/acme/chat") is None


async def test_watch_updates_the_snapshot(sqlite_database: Database) -> None:
    registry = Registry(sqlite_database, builtin_cards=[])
    watching = asyncio.create_task(registry.watch())
    await put(sqlite_database, chat_card())
    await wait_until(lambda: registry.find("@cf/acme/chat"))
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


async def test_snapshot_is_kept_during_a_database_outage_and_updated_afterwards(
    migrated_sqlite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry_module, "POLL_INTERVAL_S", 0.02)
    folder = tmp_path / "not" / "there"
    database = Database.connect(f"sqlite://{folder}/hearth.db")
    registry = Registry(database, builtin_cards=[BUILTIN])
    watching = asyncio.create_task(registry.watch())
    await wait_until(lambda: "catalog unavailable" in caplog.text)
    assert registry.find(BUILTIN.name) is not None
    folder.mkdir(parents=True)
    shutil.copyfile(migrated_sqlite_file, folder / "hearth.db")
    await put(database, chat_card())
    await wait_until(lambda: registry.find("@cf/acme/chat"))
    assert caplog.text.count("catalog unavailable") == 1
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    await database.close()
