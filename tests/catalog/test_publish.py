"""catalog/publish.py: files, manifest and row of a published model."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from catalog.aliases import set_alias
from catalog.errors import PublishError
from catalog.manifest import FileEntry, blob_key, decode_manifest, manifest_key, pointer_key
from catalog.model_folder import ModelFolder, inspect_folder
from catalog.publish import publish
from catalog.registry import Registry
from storage.database import Database
from storage.errors import StoreError
from storage.objects import Objects
from tests.catalog.cards import chat_facts, write_model_folder

NAME = "@cf/acme/chat"


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    return inspect_folder(write_model_folder(tmp_path / "model"))


@pytest.fixture(params=["file", "s3"])
async def objects(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Objects]:
    url = f"file://{tmp_path}/objects" if request.param == "file" else request.getfixturevalue("s3_objects_url")
    objects = Objects.connect(url)
    yield objects
    await objects.close()


@pytest.fixture
async def local_objects(tmp_path: Path) -> AsyncIterator[Objects]:
    objects = Objects.connect(f"file://{tmp_path}/objects")
    yield objects
    await objects.close()


async def test_manifest_and_files_are_found_from_the_name(
    sqlite_database: Database, objects: Objects, folder: ModelFolder
) -> None:
    card = await publish(sqlite_database, objects, folder, chat_facts(NAME))
    pointer = msgspec.json.decode(await objects.get_bytes(pointer_key(NAME)))
    assert pointer == {"name": NAME, "revision": card.revision}
    manifest = decode_manifest(await objects.get_bytes(manifest_key(card.revision)), card.revision)
    assert (manifest.name, manifest.task, manifest.architecture) == (NAME, "text-generation", "LlamaForCausalLM")
    for entry in manifest.files:
        data = await objects.get_bytes(blob_key(entry.sha256))
        assert data == (folder.path / entry.path).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry.size_bytes, entry.sha256)


async def test_published_model_is_in_the_registry(
    database: Database, local_objects: Objects, folder: ModelFolder
) -> None:
    card = await publish(database, local_objects, folder, chat_facts(NAME))
    registry = Registry(database, builtin_cards=[])
    await registry.refresh()
    found = registry.find(NAME)
    assert found is not None
    assert found.card == card
    assert card.source == "published"


async def test_second_publish_uploads_only_changed_files(
    sqlite_database: Database, objects: Objects, folder: ModelFolder
) -> None:
    async def uploads() -> tuple[str, list[str]]:
        seen: list[tuple[FileEntry, bool]] = []
        card = await publish(
            sqlite_database, objects, folder, chat_facts(NAME), on_file=lambda *file: seen.append(file)
        )
        assert [entry.path for entry, _ in seen] == list(folder.files)
        return card.revision, [entry.path for entry, was_uploaded in seen if was_uploaded]

    first, everything = await uploads()
    assert everything == list(folder.files)
    assert await uploads() == (first, [])
    (folder.path / "tokenizer.json").write_text('{"version": "2.0"}')
    second, changed = await uploads()
    assert changed == ["tokenizer.json"]
    assert second != first


async def test_facts_outside_the_manifest_do_not_change_the_revision(
    sqlite_database: Database, local_objects: Objects, folder: ModelFolder
) -> None:
    first = await publish(sqlite_database, local_objects, folder, chat_facts(NAME))
    second = await publish(sqlite_database, local_objects, folder, chat_facts(NAME, description="cheaper"))
    assert first.revision == second.revision


async def test_built_in_name_and_alias_cannot_be_published(
    sqlite_database: Database, local_objects: Objects, folder: ModelFolder
) -> None:
    with pytest.raises(PublishError, match="built in"):
        await publish(sqlite_database, local_objects, folder, chat_facts(NAME), builtin_names={NAME})
    await set_alias(sqlite_database, NAME, "@cf/hearth/spark", builtin_names={"@cf/hearth/spark"})
    with pytest.raises(PublishError, match="an alias"):
        await publish(sqlite_database, local_objects, folder, chat_facts(NAME))


async def test_failed_upload_leaves_the_catalog_unchanged(
    sqlite_database: Database, tmp_path: Path, folder: ModelFolder
) -> None:
    place = tmp_path / "objects"
    place.write_text("a file where the folder should be")
    objects = Objects.connect(f"file://{place}")
    with pytest.raises(StoreError):
        await publish(sqlite_database, objects, folder, chat_facts(NAME))
    await objects.close()
    registry = Registry(sqlite_database, builtin_cards=[])
    await registry.refresh()
    assert registry.all() == []
