"""catalog/finetunes.py: rows and files of fine-tunes, on both databases."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from catalog import finetunes, listed_finetunes
from catalog.errors import FinetuneError
from catalog.finetunes import Finetune, Limits
from catalog.manifest import decode_manifest, manifest_key
from storage.database import Database
from storage.objects import Objects
from tests.catalog.adapters import config_bytes, weights_bytes

OURS, THEIRS = "a" * 32, "b" * 32
MODEL = "@cf/test/base"


async def create(database: Database, name: str, account_id: str = OURS, **fields: object) -> Finetune:
    return await finetunes.create(database, account_id, name=name, model=MODEL, **fields)  # type: ignore[arg-type]


async def put(database: Database, objects: Objects, finetune: Finetune, folder: Path, config: bool) -> Finetune:
    name = "adapter_config.json" if config else "adapter_model.safetensors"
    path = folder / f"{finetune.finetune_id}-{name}"
    path.write_bytes(config_bytes() if config else weights_bytes())
    return await finetunes.put_file(database, objects, finetune, name, path)


async def test_account_lists_its_own_and_may_use_public_fine_tunes(database: Database, tmp_path: Path):
    objects = Objects.connect(f"file://{tmp_path / 'objects'}")
    ours = await create(database, "style")
    theirs = await create(database, "style", THEIRS, is_public=True)
    other = await create(database, "other", THEIRS)
    assert [each.finetune_id for each in await finetunes.list_of(database, OURS)] == [ours.finetune_id]
    assert await finetunes.find_own(database, OURS, theirs.finetune_id) is None
    assert (await finetunes.find_usable(database, OURS, "style")) == ours
    assert (await finetunes.find_usable(database, THEIRS, "style")) == theirs
    assert await finetunes.find_usable(database, OURS, theirs.finetune_id) is None, "without files"
    assert await finetunes.find_usable(database, OURS, other.finetune_id) is None
    assert await finetunes.list_public(database, limit=10, offset=0) == []
    for config in (True, False):
        await put(database, objects, theirs, tmp_path, config)
    (listed,) = await finetunes.list_public(database, limit=10, offset=0)
    assert (listed.finetune_id, listed.missing_files) == (theirs.finetune_id, [])
    for reference in (theirs.finetune_id, f"{THEIRS}/style"):
        assert await finetunes.find_usable(database, OURS, reference) == listed
        assert await finetunes.find_usable(database, OURS, reference, needs_approval=True) is None
    assert await finetunes.find_usable(database, OURS, f"{OURS}/style") == ours
    assert await finetunes.remove(database, OURS, ours.finetune_id)
    assert await finetunes.find_usable(database, OURS, "style") is None, "a name of another account"
    assert not await finetunes.remove(database, OURS, theirs.finetune_id)
    assert await finetunes.remove(database, THEIRS, theirs.finetune_id)
    await objects.close()


async def test_concurrent_uploads_make_one_manifest(database: Database, tmp_path: Path):
    objects = Objects.connect(f"file://{tmp_path / 'objects'}")
    made = await create(database, "style")
    assert made.missing_files == ["adapter_config.json", "adapter_model.safetensors"]
    await asyncio.gather(*(put(database, objects, made, tmp_path, config) for config in (True, False)))
    found = await finetunes.find_own(database, OURS, made.finetune_id)
    assert found is not None
    assert found.revision is not None
    manifest = decode_manifest(await objects.get_bytes(manifest_key(found.revision)), found.revision)
    assert [entry.path for entry in manifest.files] == ["adapter_config.json", "adapter_model.safetensors"]
    await objects.close()


async def test_number_per_account_and_names_are_limited(database: Database):
    for number in range(3):
        await create(database, f"n{number}", limits=Limits(max_per_account=3))
    with pytest.raises(FinetuneError, match="at most 3 fine-tunes"):
        await create(database, "n3", limits=Limits(max_per_account=3))
    with pytest.raises(FinetuneError, match="'/name' is already used"):
        await create(database, "n0")
    assert await create(database, "n0", THEIRS)
    assert await create(database, "cf-public-x", THEIRS, may_be_reserved=True)


async def test_listed_fine_tune_is_replaced_by_the_published_one(database: Database, tmp_path: Path):
    objects = Objects.connect(f"file://{tmp_path / 'objects'}")
    listed = [each.name for each in listed_finetunes.listed_finetunes()]
    imitated = await create(database, listed[0], THEIRS, may_be_reserved=True, is_public=True)
    for config in (True, False):
        await put(database, objects, imitated, tmp_path, config)
    shown = await listed_finetunes.list_public(database, limit=10, offset=0)
    assert [each.name for each in shown] == [listed[0], *listed], "an account's does not stand for it"
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes(config_bytes())
    (folder / "adapter_model.safetensors").write_bytes(weights_bytes())
    own = await finetunes.publish(database, objects, folder, name=listed[1], model="@cf/acme/chat", max_rank=8)
    shown = await listed_finetunes.list_public(database, limit=10, offset=0)
    assert [each.finetune_id for each in shown[:2]] == [imitated.finetune_id, own.finetune_id]
    assert [each.name for each in shown[2:]] == [listed[0], *listed[2:]]
    assert await finetunes.find_usable(database, OURS, listed[1]) == own
    await objects.close()
