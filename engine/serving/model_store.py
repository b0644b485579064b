"""Provide models by name and revision as verified folders on local disk.

Built-in models are used in place; others are downloaded into the disk cache, from peers if one has the file, and else
from the object store. Every file is hashed before its model is used, and again if it has changed since. Knows nothing
of devices or calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from catalog.builtin import builtin_models, find_folder
from catalog.errors import CardError
from catalog.manifest import FileEntry, Manifest, blob_key, decode_manifest, is_intact, manifest_key, pointer_key
from engine.serving.disk_cache import CacheFull, DiskCache
from storage.errors import Damaged, Missing, StoreError, StoreUnavailable
from storage.objects import Objects, Progress
from telemetry import metrics

logger = logging.getLogger(__name__)

_REVISION = re.compile(r"[0-9a-f]{64}")
_MAX_ATTEMPTS = 3
_MAX_PARALLEL_FILES = 4


class ModelUnavailable(Exception):
    """The model's files are unavailable: unknown, missing, damaged at the source, or of another revision."""


@dataclass(frozen=True)
class LocalModel:
    """A model whose files were verified when this object was created. `folder` must not be changed."""

    name: str
    revision: str
    folder: Path
    manifest: Manifest


class FindsModels(Protocol):
    """A `ModelStore`, or the folder of a standalone server."""

    async def current_revision(self, name: str) -> str: ...
    async def open(self, name: str, revision: str, on_progress: Progress | None = None) -> LocalModel: ...
    def release(self, revision: str) -> None: ...


class FindsPeers(Protocol):
    """Other nodes from which files can be read."""

    async def having(self, revision: str) -> list[Objects]:
        """Return sources that have the files of a model, best first. The caller closes them."""
        ...


class _Pointer(msgspec.Struct):
    name: str
    revision: str


class ModelStore:
    """`objects` None: built-in models only. A peer that sends wrong bytes or fails is ignored.

    All methods raise ModelUnavailable, CacheFull, StoreUnavailable.
    """

    def __init__(self, cache: DiskCache, objects: Objects | None, peers: FindsPeers | None = None) -> None:
        self._peers = peers
        self._cache = cache
        self._objects = objects
        self._holds: Counter[str] = Counter()
        self._fetching = asyncio.Lock()

    async def current_revision(self, name: str) -> str:
        """Return the current revision of `name`; while the object store is unavailable, the one that was used last."""
        builtin = builtin_models().get(name)
        if builtin is not None:
            return builtin.card.revision
        objects = self._objects_for(name)
        try:
            pointer = msgspec.json.decode(await objects.get_bytes(pointer_key(name)), type=_Pointer)
        except Missing:
            raise ModelUnavailable(f"{name} is neither built in here nor published") from None
        except StoreUnavailable:
            cached = await asyncio.to_thread(self._cache.find_latest, name)
            if cached is None:
                raise
            logger.warning("object store unavailable; using the cached revision", extra={"model": name})
            return cached
        except msgspec.DecodeError as error:
            raise ModelUnavailable(f"the pointer of {name} cannot be read") from error
        if pointer.name != name or not _REVISION.fullmatch(pointer.revision):
            raise ModelUnavailable(f"the pointer of {name} names another model or no valid revision")
        return pointer.revision

    async def open(self, name: str, revision: str, on_progress: Progress | None = None) -> LocalModel:
        """Download and verify the model, and keep it until `release`. `on_progress` is called if files are
        downloaded."""
        builtin = builtin_models().get(name)
        if builtin is not None:
            return await self._open_builtin(name, revision, builtin.manifest)
        if not _REVISION.fullmatch(revision):
            raise ModelUnavailable("a revision is 64 hexadecimal digits")
        self._holds[revision] += 1
        try:
            manifest = await self._cached(name, revision)
            if manifest is None:
                async with self._fetching:  # one model at a time, so that shared files are downloaded once
                    manifest = await self._download(name, revision, on_progress or (lambda _done, _size: None))
            folder = await asyncio.to_thread(self._cache.link, manifest)
        except BaseException:
            self.release(revision)
            raise
        return LocalModel(name, revision, folder, manifest)

    def release(self, revision: str) -> None:
        """Release a model from `open`; its files may then be evicted."""
        self._holds[revision] -= 1
        self._holds += Counter()  # removes entries that are not positive

    async def _open_builtin(self, name: str, revision: str, manifest: Manifest) -> LocalModel:
        if revision != manifest.revision:
            raise ModelUnavailable(f"{name} is built in here with another revision")
        folder = find_folder(name)
        if folder is None:
            raise ModelUnavailable(f"the files of {name} are not installed here")
        for entry in manifest.files:
            if not await asyncio.to_thread(is_intact, folder / entry.path, entry):
                raise ModelUnavailable(f"{entry.path} of {name} is missing or damaged")
        return LocalModel(name, revision, folder, manifest)

    async def _cached(self, name: str, revision: str) -> Manifest | None:
        """Return the manifest of a model whose files are all on disk and intact, or None."""
        manifest = await asyncio.to_thread(self._cache.find_manifest, revision)
        if manifest is None:
            return None
        missing = await asyncio.to_thread(self._cache.missing_files, manifest)
        return None if missing else _of_model(manifest, name)

    async def _download(self, name: str, revision: str, on_progress: Progress) -> Manifest:
        peers = await self._peers.having(revision) if self._peers is not None else []
        try:
            manifest = await self._manifest(name, revision, peers)
            await self._complete(manifest, on_progress, peers)
        finally:
            for peer in peers:
                await peer.close()
        return manifest

    async def _manifest(self, name: str, revision: str, peers: Sequence[Objects]) -> Manifest:
        manifest = await asyncio.to_thread(self._cache.find_manifest, revision)
        for peer in peers:
            if manifest is None:
                with contextlib.suppress(StoreError, CardError):
                    manifest = decode_manifest(await peer.get_bytes(manifest_key(revision)), revision)
        if manifest is None:
            try:
                data = await self._objects_for(name).get_bytes(manifest_key(revision))
                manifest = decode_manifest(data, revision)
            except Missing:
                raise ModelUnavailable(f"{name} has no such revision") from None
            except CardError as error:
                raise ModelUnavailable(f"{name}: {error}") from error
        return _of_model(manifest, name)

    async def _complete(self, manifest: Manifest, on_progress: Progress, peers: Sequence[Objects]) -> None:
        missing = await asyncio.to_thread(self._cache.missing_files, manifest)
        if not missing:
            return
        objects = self._objects_for(manifest.name)
        size_bytes = sum(entry.size_bytes for entry in missing)
        await asyncio.to_thread(self._cache.make_room, manifest, size_bytes, set(self._holds))
        logger.info("downloading model", extra={"model": manifest.name, "size_bytes": size_bytes})
        slots = asyncio.Semaphore(_MAX_PARALLEL_FILES)
        done_bytes = dict.fromkeys((entry.sha256 for entry in missing), 0)
        on_progress(0, size_bytes)

        async def fetch(entry: FileEntry) -> None:
            def report(num_bytes: int, _size_bytes: int) -> None:
                done_bytes[entry.sha256] = num_bytes
                on_progress(sum(done_bytes.values()), size_bytes)

            async with slots:
                with self._disk_full_as_cache_full(manifest.name, entry):
                    if not await self._fetch_from_peer(peers, manifest.name, entry, report):
                        await self._fetch(objects, manifest.name, entry, report)

        try:
            async with asyncio.TaskGroup() as group:
                for entry in missing:
                    group.create_task(fetch(entry))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _fetch_from_peer(
        self, peers: Sequence[Objects], name: str, entry: FileEntry, on_progress: Progress
    ) -> bool:
        """Download one file from the first peer that has it; return False if none has."""
        key, path = blob_key(entry.sha256), self._cache.blob_path(entry)
        for peer in peers:
            try:
                await peer.download(
                    key, path, sha256=entry.sha256, size_bytes=entry.size_bytes, on_progress=on_progress
                )
            except StoreError as error:
                logger.warning("peer ignored", extra={"model": name, "file": entry.path, "reason": str(error)})
            else:
                metrics.WEIGHTS_FETCHED.labels("peer").inc(entry.size_bytes)
                return True
        return False

    async def _fetch(self, objects: Objects, name: str, entry: FileEntry, on_progress: Progress) -> None:
        """Download one file, resuming a partial one; damaged bytes are downloaded again."""
        key, path = blob_key(entry.sha256), self._cache.blob_path(entry)
        try:
            if (await objects.stat(key)).size_bytes != entry.size_bytes:
                raise ModelUnavailable(f"{entry.path} of {name} has a wrong size in the object store")
            for _ in range(_MAX_ATTEMPTS):
                with contextlib.suppress(Damaged):
                    await objects.download(key, path, sha256=entry.sha256, on_progress=on_progress)
                    metrics.WEIGHTS_FETCHED.labels("store").inc(entry.size_bytes)
                    return
                logger.error("downloaded file damaged", extra={"model": name, "file": entry.path})
            raise ModelUnavailable(f"{entry.path} of {name} is damaged in the object store")
        except Missing:
            raise ModelUnavailable(f"{entry.path} of {name} is not in the object store") from None

    @contextlib.contextmanager
    def _disk_full_as_cache_full(self, name: str, entry: FileEntry) -> Iterator[None]:
        """Raise CacheFull if the file system is full, and free what the download occupies."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._cache.discard_part(entry)
            raise CacheFull(f"the disk is full: {entry.path} of {name} has {entry.size_bytes} bytes") from error

    def _objects_for(self, name: str) -> Objects:
        if self._objects is None:
            raise ModelUnavailable(f"{name} is not built in, and this node has no OBJECTS_URL")
        return self._objects


def _of_model(manifest: Manifest, name: str) -> Manifest:
    if manifest.name != name:
        raise ModelUnavailable("the revision is of another model")
    return manifest
