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
from catalog.unpublish import unpublish
from storage.database import Database
from storage.errors import Missing, StoreError
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


async def test_removed_model_leaves_only_the_files_of_other_models(
    sqlite_database: Database, objects: Objects, folder: ModelFolder, tmp_path: Path
) -> None:
    card = await publish(sqlite_database, objects, folder, chat_facts(NAME))
    other_folder = inspect_folder(write_model_folder(tmp_path / "other", seed=1))
    other = await publish(sqlite_database, objects, other_folder, chat_facts("@cf/acme/other"))
    removed = await unpublish(sqlite_database, objects, NAME)
    sizes = {file.path: file.size_bytes for file in card.files}
    assert (removed.card, removed.deleted_bytes) == (card, sizes["model.safetensors"])
    assert removed.kept_bytes == sizes["config.json"] + sizes["tokenizer.json"]
    with pytest.raises(Missing):
        await objects.stat(pointer_key(NAME))
    remaining_keys = [
        manifest_key(other.revision),
        pointer_key(other.name),
        *(blob_key(file.sha256) for file in other.files),
    ]
    assert await objects.list() == sorted(remaining_keys)
    registry = Registry(sqlite_database, builtin_cards=[])
    await registry.refresh()
    assert (registry.find(NAME), registry.find(other.name) is not None) == (None, True)
    again = await publish(sqlite_database, objects, folder, chat_facts(NAME))
    assert again.revision == card.revision


async def test_file_that_is_removed_during_a_publish_fails_the_publish(
    sqlite_database: Database, local_objects: Objects, folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_file = local_objects.put_file

    async def put_and_lose(key: str, path: Path, sha256: str | None = None) -> str:
        stored = await put_file(key, path, sha256)
        await local_objects.delete(key)
        return stored

    monkeypatch.setattr(local_objects, "put_file", put_and_lose)
    with pytest.raises(PublishError, match="publish again"):
        await publish(sqlite_database, local_objects, folder, chat_facts(NAME))


async def test_model_that_is_built_in_aliased_or_unknown_is_not_removed(
    sqlite_database: Database, local_objects: Objects, folder: ModelFolder
) -> None:
    await publish(sqlite_database, local_objects, folder, chat_facts(NAME))
    await set_alias(sqlite_database, "@cf/acme/a", NAME)
    await set_alias(sqlite_database, "@cf/acme/b", "@cf/acme/a")
    reasons = {
        NAME: "is the target of @cf/acme/a, @cf/acme/b",
        "@cf/acme/b": "is an alias",
        "@cf/hearth/spark": "is built in",
        "@cf/acme/none": "no published model",
    }
    for name, reason in reasons.items():
        with pytest.raises(PublishError, match=reason):
            await unpublish(sqlite_database, local_objects, name)
