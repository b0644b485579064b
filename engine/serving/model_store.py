"""Provide models by name and revision as verified folders on local disk.

Built-in models are used in place; others are downloaded from the object store into the disk cache. Every file is hashed
each time its model is prepared. Knows nothing of devices or calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from catalog.builtin import builtin_models, find_folder
from catalog.errors import CardError
from catalog.manifest import FileEntry, Manifest, blob_key, decode_manifest, is_intact, manifest_key, pointer_key
from engine.serving.disk_cache import CacheFull, DiskCache
from storage.errors import Damaged, Missing
from storage.objects import Objects

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
    async def open(self, name: str, revision: str) -> LocalModel: ...
    def release(self, revision: str) -> None: ...


class _Pointer(msgspec.Struct):
    name: str
    revision: str


class ModelStore:
    """`objects` None: built-in models only. All methods raise ModelUnavailable, CacheFull, StoreUnavailable."""

    def __init__(self, cache: DiskCache, objects: Objects | None) -> None:
        self._cache = cache
        self._objects = objects
        self._holds: Counter[str] = Counter()
        self._fetching = asyncio.Lock()

    async def current_revision(self, name: str) -> str:
        """Return the current revision of `name`."""
        builtin = builtin_models().get(name)
        if builtin is not None:
            return builtin.card.revision
        objects = self._objects_for(name)
        try:
            pointer = msgspec.json.decode(await objects.get_bytes(pointer_key(name)), type=_Pointer)
        except Missing:
            raise ModelUnavailable(f"{name} is neither built in here nor published") from None
        except msgspec.DecodeError as error:
            raise ModelUnavailable(f"the pointer of {name} cannot be read") from error
        if pointer.name != name or not _REVISION.fullmatch(pointer.revision):
            raise ModelUnavailable(f"the pointer of {name} names another model or no valid revision")
        return pointer.revision

    async def open(self, name: str, revision: str) -> LocalModel:
        """Download and verify the model, and keep it until `release`."""
        builtin = builtin_models().get(name)
        if builtin is not None:
            return await self._open_builtin(name, revision, builtin.manifest)
        if not _REVISION.fullmatch(revision):
            raise ModelUnavailable("a revision is 64 hexadecimal digits")
        self._holds[revision] += 1
        try:
            async with self._fetching:  # one model at a time, so that shared files are downloaded once
                manifest = await self._manifest(name, revision)
                await self._complete(manifest)
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

    async def _manifest(self, name: str, revision: str) -> Manifest:
        manifest = await asyncio.to_thread(self._cache.find_manifest, revision)
        if manifest is None:
            try:
                data = await self._objects_for(name).get_bytes(manifest_key(revision))
                manifest = decode_manifest(data, revision)
            except Missing:
                raise ModelUnavailable(f"{name} has no such revision") from None
            except CardError as error:
                raise ModelUnavailable(f"{name}: {error}") from error
        if manifest.name != name:
            raise ModelUnavailable("the revision is of another model")
        return manifest

    async def _complete(self, manifest: Manifest) -> None:
        missing = await asyncio.to_thread(self._cache.missing_files, manifest)
        if not missing:
            return
        objects = self._objects_for(manifest.name)
        size_bytes = sum(entry.size_bytes for entry in missing)
        await asyncio.to_thread(self._cache.make_room, manifest, size_bytes, set(self._holds))
        logger.info("downloading model", extra={"model": manifest.name, "size_bytes": size_bytes})
        slots = asyncio.Semaphore(_MAX_PARALLEL_FILES)

        async def fetch(entry: FileEntry) -> None:
            async with slots:
                await self._fetch(objects, manifest.name, entry)

        try:
            async with asyncio.TaskGroup() as group:
                for entry in missing:
                    group.create_task(fetch(entry))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _fetch(self, objects: Objects, name: str, entry: FileEntry) -> None:
        """Download one file, resuming a partial one; damaged bytes are downloaded again."""
        key, path = blob_key(entry.sha256), self._cache.blob_path(entry)
        try:
            if (await objects.stat(key)).size_bytes != entry.size_bytes:
                raise ModelUnavailable(f"{entry.path} of {name} has a wrong size in the object store")
            for _ in range(_MAX_ATTEMPTS):
                with contextlib.suppress(Damaged):
                    return await objects.download(key, path, sha256=entry.sha256)
                logger.error("downloaded file damaged", extra={"model": name, "file": entry.path})
            raise ModelUnavailable(f"{entry.path} of {name} is damaged in the object store")
        except Missing:
            raise ModelUnavailable(f"{entry.path} of {name} is not in the object store") from None
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._cache.discard_part(entry)
            raise CacheFull(f"the disk is full: {entry.path} of {name} has {entry.size_bytes} bytes") from error

    def _objects_for(self, name: str) -> Objects:
        if self._objects is None:
            raise ModelUnavailable(f"{name} is not built in, and this node has no OBJECTS_URL")
        return self._objects
