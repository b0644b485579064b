"""The model store: only bytes with the right digest are served, files in use are kept, and missing models are
reported."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections import namedtuple
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench import figures
from catalog.builtin import builtin_models
from catalog.manifest import Manifest, blob_key, pointer_key
from engine.serving import verified_files
from engine.serving.disk_cache import CacheFull, CacheInUse, DiskCache
from engine.serving.model_store import LocalModel, ModelStore, ModelUnavailable
from storage.errors import StoreUnavailable
from storage.objects import Objects
from tests.engine.node.published import publish
from tests.waiting import PATIENCE_S

SOURCE = f"pytest {Path(__file__).name}"

NAME = "@cf/test/model"
WEIGHTS = bytes(range(256)) * 40


class Place:
    """An object store in one folder and its disk cache in another."""

    def __init__(self, folder: Path, max_bytes: int = 1 << 20) -> None:
        self.folder = folder
        self.objects = Objects.connect(f"file://{folder}/objects")
        self.cache = DiskCache(folder / "cache", max_bytes)
        self.store = ModelStore(self.cache, self.objects)

    async def publish(self, name: str = NAME, weights: bytes = WEIGHTS) -> Manifest:
        return await publish(self.objects, name, {"config.json": b"{}", "1_Pooling/model.safetensors": weights})

    async def open(self, manifest: Manifest) -> LocalModel:
        return await self.store.open(manifest.name, manifest.revision)

    def object_path(self, manifest: Manifest, file: int = 1) -> Path:
        return self.folder / "objects" / blob_key(manifest.files[file].sha256)

    def blob_path(self, manifest: Manifest, file: int = 1) -> Path:
        return self.cache.blob_path(manifest.files[file])

    def remove_objects(self) -> None:
        shutil.rmtree(self.folder / "objects")


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    yield place
    place.cache.close()
    await place.objects.close()


def read_all(model: LocalModel) -> dict[str, bytes]:
    return {entry.path: (model.folder / entry.path).read_bytes() for entry in model.manifest.files}


async def test_published_model_has_all_files_under_their_names(place: Place) -> None:
    manifest = await place.publish()
    assert await place.store.current_revision(NAME) == manifest.revision
    model = await place.open(manifest)
    assert read_all(model) == {"config.json": b"{}", "1_Pooling/model.safetensors": WEIGHTS}
    assert NAME not in str(model.folder), "a name never forms a path"


async def test_cached_model_needs_no_object_store(place: Place) -> None:
    manifest = await place.publish()
    await place.open(manifest)
    place.remove_objects()
    assert read_all(await place.open(manifest))["config.json"] == b"{}"


async def test_every_flipped_bit_on_disk_is_detected(place: Place) -> None:
    manifest = await place.publish(weights=WEIGHTS[:64])
    await place.open(manifest)
    place.remove_objects()
    blob = place.blob_path(manifest)
    data = blob.read_bytes()
    for position in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        blob.write_bytes(flipped)
        with pytest.raises((ModelUnavailable, StoreUnavailable)):
            await place.open(manifest)
        assert not blob.exists(), "it is put aside"
    assert list((place.folder / "cache/quarantine").iterdir())


@pytest.mark.parametrize("damage", [WEIGHTS[:-1], WEIGHTS + b"x", b"", WEIGHTS[:-1] + b"x"])
async def test_file_damaged_on_disk_is_quarantined_and_fetched_again(place: Place, damage: bytes) -> None:
    manifest = await place.publish()
    await place.open(manifest)
    place.blob_path(manifest).write_bytes(damage)
    assert read_all(await place.open(manifest))["1_Pooling/model.safetensors"] == WEIGHTS
    quarantined = place.folder / "cache/quarantine" / manifest.files[1].sha256
    assert quarantined.read_bytes() == damage


@pytest.mark.parametrize("damage", [WEIGHTS[:-1], WEIGHTS + b"x", b"", WEIGHTS[:-1] + b"x"])
async def test_file_damaged_in_the_object_store_is_never_served(place: Place, damage: bytes) -> None:
    manifest = await place.publish()
    other = await place.publish("@cf/test/other", b"other weights")
    place.object_path(manifest).write_bytes(damage)
    with pytest.raises(ModelUnavailable):
        await place.open(manifest)
    assert not place.blob_path(manifest).exists()
    assert read_all(await place.open(other))["1_Pooling/model.safetensors"] == b"other weights"


async def test_missing_model_is_unavailable(place: Place) -> None:
    manifest = await place.publish()
    for name, revision in (
        (NAME, "0" * 64),
        (NAME, "../../etc/passwd"),
        (NAME, manifest.revision.upper()),
        ("@cf/test/other", manifest.revision),
    ):
        with pytest.raises(ModelUnavailable):
            await place.store.open(name, revision)
    with pytest.raises(ModelUnavailable, match="nor published"):
        await place.store.current_revision("@cf/test/unknown")
    place.object_path(manifest).unlink()
    with pytest.raises(ModelUnavailable, match="not in the object store"):
        await place.open(manifest)


@pytest.mark.parametrize("pointer", [b"", b"{}", b'{"name":"@cf/test/x","revision":"' + b"0" * 64 + b'"}', b"\xff"])
async def test_malformed_or_foreign_pointer_is_rejected(place: Place, pointer: bytes) -> None:
    await place.publish()
    await place.objects.put_bytes(pointer_key(NAME), pointer)
    with pytest.raises(ModelUnavailable, match="pointer"):
        await place.store.current_revision(NAME)


async def test_without_object_store_only_built_in_models_are_available(place: Place) -> None:
    manifest = await place.publish()
    alone = ModelStore(place.cache, None)
    with pytest.raises(ModelUnavailable, match="OBJECTS_URL"):
        await alone.open(NAME, manifest.revision)


async def test_least_recently_used_model_is_evicted_but_never_one_in_use(tmp_path: Path) -> None:
    place = Place(tmp_path, max_bytes=25_000)
    manifests = [await place.publish(f"@cf/test/m{index}", bytes([index]) * 10_000) for index in range(4)]
    held = await place.open(manifests[0])
    for manifest in manifests[1:3]:
        await place.open(manifest)
        place.store.release(manifest.revision)
    assert place.blob_path(manifests[0]).exists()
    assert not place.blob_path(manifests[1]).exists()
    assert place.blob_path(manifests[2]).exists()
    assert read_all(held)["1_Pooling/model.safetensors"] == bytes(10_000)
    figures.record(
        "P12", "full cache: the least recently used idle model is evicted, the one in use is readable", SOURCE
    )
    place.cache.close()
    await place.objects.close()


async def test_shared_files_are_kept_until_both_models_are_evicted(tmp_path: Path) -> None:
    place = Place(tmp_path, max_bytes=25_000)
    first = await place.publish("@cf/test/first", b"s" * 10_000)
    second = await place.publish("@cf/test/second", b"s" * 10_000)
    for manifest in (first, second):
        await place.open(manifest)
    place.store.release(first.revision)
    third = await place.publish("@cf/test/third", b"t" * 14_000)
    await place.open(third)
    assert place.blob_path(second).exists()
    assert read_all(await place.open(second))["1_Pooling/model.safetensors"] == b"s" * 10_000
    place.cache.close()
    await place.objects.close()


async def test_model_larger_than_the_cache_is_rejected_without_evictions(tmp_path: Path) -> None:
    place = Place(tmp_path, max_bytes=25_000)
    small = await place.publish("@cf/test/small", b"s" * 10_000)
    model = await place.open(small)
    large = await place.publish("@cf/test/large", b"l" * 20_000)
    with pytest.raises(CacheFull, match="no room for 200"):
        await place.open(large)
    assert read_all(model)["1_Pooling/model.safetensors"] == b"s" * 10_000
    place.cache.close()
    await place.objects.close()


async def test_nearly_full_file_system_counts_as_full(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = await place.publish()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(1 << 40, 1 << 40, 1 << 20))
    with pytest.raises(CacheFull):
        await place.open(manifest)


async def test_disk_full_during_download_is_reported_and_leaves_no_file(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = await place.publish()

    async def no_space(_key: str, path: Path, **_options: object) -> None:
        path.with_name(path.name + ".part").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(place.objects, "download", no_space)
    with pytest.raises(CacheFull, match="disk is full"):
        await place.open(manifest)
    assert list((place.folder / "cache/blobs").iterdir()) == []
    figures.record("P12", "full disk: reported as such, and no file is left", SOURCE)


async def test_incomplete_downloads_are_evicted_first(tmp_path: Path) -> None:
    place = Place(tmp_path, max_bytes=25_000)
    (tmp_path / "cache/blobs" / ("0" * 64 + ".part")).write_bytes(b"x" * 20_000)
    await place.open(await place.publish())
    place.cache.close()
    await place.objects.close()


def test_a_cache_has_one_owner(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    with pytest.raises(CacheInUse):
        DiskCache(tmp_path, 1 << 20)
    cache.close()
    DiskCache(tmp_path, 1 << 20).close()


async def test_built_in_models_are_used_in_place(place: Place) -> None:
    name = "@cf/hearth/minilm"
    revision = await place.store.current_revision(name)
    model = await place.store.open(name, revision)
    assert (model.folder / "model.safetensors").is_file()
    assert not model.folder.is_relative_to(place.folder)
    with pytest.raises(ModelUnavailable, match="another revision"):
        await place.store.open(name, "0" * 64)


async def test_a_damaged_built_in_model_is_not_served(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "@cf/hearth/minilm"
    manifest = builtin_models()[name].manifest
    for entry in manifest.files:
        path = tmp_path / "copy" / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not what it was")
    monkeypatch.setattr("engine.serving.model_store.find_folder", lambda _name: tmp_path / "copy")
    with pytest.raises(ModelUnavailable, match="damaged"):
        await place.store.open(name, manifest.revision)
    monkeypatch.setattr("engine.serving.model_store.find_folder", lambda _name: None)
    with pytest.raises(ModelUnavailable, match="not installed"):
        await place.store.open(name, manifest.revision)


async def test_unchanged_files_are_hashed_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified_files, "SETTLED_S", 0.0)
    manifest = await place.publish()
    await place.open(manifest)
    hashed: list[str] = []
    is_intact = verified_files.is_intact
    monkeypatch.setattr(verified_files, "is_intact", lambda *file: hashed.append(file[1].path) or is_intact(*file))
    for _ in range(2):
        await place.open(manifest)
    assert sorted(hashed) == ["1_Pooling/model.safetensors", "config.json"]
    place.blob_path(manifest).write_bytes(b"X" + WEIGHTS[1:])
    assert read_all(await place.open(manifest))["1_Pooling/model.safetensors"] == WEIGHTS


async def test_cached_revision_is_used_while_the_object_store_is_unavailable(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = await place.publish()
    await place.open(manifest)

    async def unavailable(_key: str) -> bytes:
        raise StoreUnavailable("down")

    monkeypatch.setattr(place.objects, "get_bytes", unavailable)
    assert await place.store.current_revision(NAME) == manifest.revision
    with pytest.raises(StoreUnavailable):
        await place.store.current_revision("@cf/test/other")


async def test_model_on_disk_does_not_wait_for_the_download_of_another(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached, slow = await place.publish(), await place.publish("@cf/test/slow", WEIGHTS + b"more")
    await place.open(cached)
    gate = asyncio.Event()
    download = place.objects.download

    async def held(*arguments: object, **options: object) -> None:
        await gate.wait()
        await download(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(place.objects, "download", held)
    loading = asyncio.create_task(place.open(slow))
    assert read_all(await asyncio.wait_for(place.open(cached), PATIENCE_S))["config.json"] == b"{}"
    assert not loading.done()
    gate.set()
    await loading
