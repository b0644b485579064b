"""storage/objects.py with a folder and an S3 server, and downloads from a backend that interrupts reads."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest

from storage.errors import Damaged, Missing, StoreUnavailable
from storage.object_backend import Backend, ObjectStat
from storage.objects import Objects
from storage.objects_file import FileBackend
from tests.waiting import wait_until

_BYTES = os.urandom(3 << 20) + b"end"
_SHA256 = hashlib.sha256(_BYTES).hexdigest()


@pytest.fixture(params=["file", "s3"])
async def objects(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Objects]:
    url = f"file://{tmp_path / 'bucket'}" if request.param == "file" else request.getfixturevalue("s3_objects_url")
    store = Objects.connect(url)
    yield store
    await store.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(_BYTES)
    return tmp_path / "source"


async def test_stored_object_is_read_whole_in_ranges_and_with_its_checksum(objects: Objects, source: Path) -> None:
    assert await objects.put_file("blobs/sha256/abc", source, sha256=_SHA256) == _SHA256
    assert await objects.stat("blobs/sha256/abc") == ObjectStat(len(_BYTES), _SHA256)
    assert await objects.get_bytes("blobs/sha256/abc") == _BYTES
    for start, end in [(0, 10), (5, 5), (10, None), (len(_BYTES) - 3, len(_BYTES) + 50), (len(_BYTES) + 1, None)]:
        assert await objects.get_bytes("blobs/sha256/abc", start, end) == _BYTES[start:end]


async def test_put_replaces_an_object_and_delete_removes_it(objects: Objects) -> None:
    await objects.put_bytes("models/pointer.json", b"old, and longer")
    assert await objects.put_bytes("models/pointer.json", b"new") == hashlib.sha256(b"new").hexdigest()
    assert await objects.get_bytes("models/pointer.json") == b"new"
    await objects.put_bytes("empty", b"")
    assert await objects.get_bytes("empty") == b""
    await objects.delete("models/pointer.json")
    await objects.delete("models/pointer.json")
    for absent in (
        objects.get_bytes("models/pointer.json"),
        objects.stat("models/pointer.json"),
        objects.stat("models"),
    ):
        with pytest.raises(Missing):
            await absent


async def test_keys_are_listed_by_prefix_sorted(objects: Objects) -> None:
    assert await objects.list() == []
    for key in ("b/2", "b/1", "a", "bc"):
        await objects.put_bytes(key, b"x")
    assert await objects.list() == ["a", "b/1", "b/2", "bc"]
    assert await objects.list("b/") == ["b/1", "b/2"]
    assert await objects.list("nothing") == []


async def test_file_with_another_checksum_is_not_stored(objects: Objects, source: Path) -> None:
    with pytest.raises(Damaged):
        await objects.put_file("key", source, sha256="0" * 64)
    assert await objects.list() == []


@pytest.mark.parametrize("key", ["", "/x", "x/", "../x", "a/../b", "a//b", ".hidden", "a b", "a\0b", "a\n", "x" * 901])
async def test_invalid_key_is_rejected(objects: Objects, key: str) -> None:
    for refused in (objects.put_bytes(key, b""), objects.get_bytes(key), objects.stat(key), objects.delete(key)):
        with pytest.raises(ValueError, match="key"):
            await refused


async def test_download_is_verified_and_reports_progress(objects: Objects, source: Path, tmp_path: Path) -> None:
    await objects.put_file("key", source)
    seen: list[tuple[int, int]] = []
    target = tmp_path / "folder" / "target"
    await objects.download("key", target, on_progress=lambda done, size: seen.append((done, size)))
    assert target.read_bytes() == _BYTES
    assert seen[-1] == (len(_BYTES), len(_BYTES))
    assert seen == sorted(seen)
    assert os.listdir(target.parent) == ["target"]
    with pytest.raises(Missing):
        await objects.download("absent", tmp_path / "absent")


async def test_damaged_download_is_not_renamed_to_its_path(objects: Objects, source: Path, tmp_path: Path) -> None:
    await objects.put_file("key", source)
    with pytest.raises(Damaged):
        await objects.download("key", tmp_path / "target", sha256="0" * 64)
    assert sorted(os.listdir(tmp_path)) in (["source"], ["bucket", "source"])


async def test_ping_fails_if_the_store_is_unavailable(
    objects: Objects, s3_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await objects.ping()
    nowhere = Objects.connect("s3://there-is-no-such-bucket")
    with pytest.raises(StoreUnavailable, match="bucket"):
        await nowhere.ping()
    await nowhere.close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    away = Objects.connect("s3://bucket/prefix")
    with pytest.raises(StoreUnavailable):
        await away.get_bytes("key")
    await away.close()


@pytest.mark.parametrize("url", ["", "bucket", "file://relative", "s3://", "http://x/y", "/tmp/x"])
def test_unsupported_url_is_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="must be file:"):
        Objects.connect(url)


class _InterruptedBackend:
    """A backend whose reads fail after some bytes a given number of times, and that records the start of each read."""

    def __init__(self, cuts: list[int | None], content: bytes = _BYTES) -> None:
        self.cuts = cuts
        self.content = content
        self.starts: list[int] = []

    def stat(self, key: str) -> ObjectStat:
        return ObjectStat(len(_BYTES), _SHA256)

    def read(self, key: str, start: int, end: int | None) -> Iterator[bytes]:
        self.starts.append(start)
        cut = self.cuts.pop(0) if self.cuts else None
        yield self.content[start:end] if cut is None else self.content[start : start + cut]
        if cut is not None:
            raise StoreUnavailable("cut")

    def close(self) -> None:
        """Do nothing: no file is kept open."""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.objects._FIRST_PAUSE_S", 0.01)


async def _download(backend: _InterruptedBackend, target: Path, *, resume: bool = True) -> None:
    store = Objects(cast(Backend, backend))
    try:
        await store.download("key", target, resume=resume)
    finally:
        await store.close()


async def test_interrupted_download_resumes_at_its_offset(tmp_path: Path) -> None:
    backend = _InterruptedBackend([1000, 0, 500])
    await _download(backend, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == _BYTES
    assert backend.starts == [0, 1000, 1000, 1500]


async def test_partial_file_is_kept_while_the_store_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await _download(_InterruptedBackend([1000, 0, 0, 0, 0]), tmp_path / "target")
    assert (tmp_path / "target.part").stat().st_size == 1000
    second = _InterruptedBackend([])
    await _download(second, tmp_path / "target")
    assert second.starts == [1000]
    assert (tmp_path / "target").read_bytes() == _BYTES
    assert not (tmp_path / "target.part").exists()


async def test_damaged_partial_file_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "target.part").write_bytes(b"not what the object begins with")
    with pytest.raises(Damaged):
        await _download(_InterruptedBackend([]), tmp_path / "target")
    assert os.listdir(tmp_path) == []
    await _download(_InterruptedBackend([]), tmp_path / "target")


@pytest.mark.parametrize("resume", [True, False])
async def test_unusable_partial_file_is_downloaded_again(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "target.part").write_bytes(_BYTES + b"too long" if resume else b"unwanted")
    backend = _InterruptedBackend([])
    await _download(backend, tmp_path / "target", resume=resume)
    assert backend.starts == [0]


async def test_existing_file_with_the_right_checksum_is_not_downloaded(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(_BYTES)
    backend = _InterruptedBackend([])
    await _download(backend, tmp_path / "target")
    assert backend.starts == []
    assert os.listdir(tmp_path) == ["target"]


async def test_concurrent_downloads_to_one_path_fetch_the_object_once(tmp_path: Path) -> None:
    backend = _InterruptedBackend([])
    await asyncio.gather(*(_download(backend, tmp_path / "target") for _ in range(3)))
    assert backend.starts == [0]
    assert (tmp_path / "target").read_bytes() == _BYTES


async def test_cancelled_download_stops_and_keeps_its_partial_file(tmp_path: Path) -> None:
    backend = _InterruptedBackend([1000] + [0] * 100)
    task = asyncio.create_task(_download(backend, tmp_path / "target"))
    await wait_until(lambda: backend.starts, interval_s=0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (tmp_path / "target").exists()


def test_interrupted_put_stores_no_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    backend = FileBackend(tmp_path)
    with pytest.raises(StoreUnavailable, match="No space"):
        backend.put_bytes("key", b"x", hashlib.sha256(b"x").hexdigest())
    assert backend.list("") == []
    assert os.listdir(tmp_path / ".incoming") == []
