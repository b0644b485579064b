"""Weights on local disk: files under their own digests, models as folders of links to them. Evicts the least recently
used models.

    blobs/<sha256>              a file with this digest when it was downloaded (.part: a partial download)
    models/<revision>/…         links into blobs, named as in the model's manifest
    manifests/<revision>.json   written last, when the model is complete; its mtime is the last use
    quarantine/<sha256>         a file with a wrong digest, kept for the operator

One process owns a folder. Paths consist of digests, never of a model's name. `model_store.py` downloads the files.
Blocking: call it in a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from catalog.errors import CardError
from catalog.manifest import FileEntry, Manifest, decode_manifest
from engine.serving.verified_files import VerifiedFiles

logger = logging.getLogger(__name__)

RESERVED_FREE_BYTES = 64 * 1024 * 1024  # free space of the file system that is never filled with weights


class CacheInUse(Exception):
    """Another process owns the folder."""


class CacheFull(Exception):
    """A model does not fit even after eviction; the text states the required size."""


class DiskCache:
    """Owns `folder` until `close`. Holds at most `max_bytes` of blobs, including quarantined ones."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Raises CacheInUse, or OSError if the folder is not writable."""
        self._blobs = folder / "blobs"
        self._models = folder / "models"
        self._manifests = folder / "manifests"
        self._quarantine = folder / "quarantine"
        self._max_bytes = max_bytes
        self._verified = VerifiedFiles()
        for each in (self._blobs, self._models, self._manifests, self._quarantine):
            each.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise CacheInUse(f"{folder} is used by another node") from error

    def close(self) -> None:
        self._lock.close()

    def blob_path(self, entry: FileEntry) -> Path:
        """Return the path of a file that is present and verified."""
        return self._blobs / entry.sha256

    def find_manifest(self, revision: str) -> Manifest | None:
        """Return the manifest of a model that was complete once; its files may have been damaged since."""
        path = self._manifests / f"{revision}.json"
        try:
            return decode_manifest(path.read_bytes(), revision)
        except FileNotFoundError:
            return None
        except CardError:
            path.unlink()
            return None

    def missing_files(self, manifest: Manifest) -> list[FileEntry]:
        """Return the distinct files of a model that are missing. Reads every file that has changed since this process
        verified it; damaged files are quarantined first."""
        found = {self.blob_path(entry): entry for entry in manifest.files}
        damaged = self._verified.find_damaged(list(found.items()))
        for path, entry in damaged:
            if path.exists():
                logger.error("damaged file quarantined", extra={"file": entry.path, "sha256": entry.sha256})
                with contextlib.suppress(FileNotFoundError):  # another thread was first
                    path.replace(self._quarantine / entry.sha256)
        return [entry for _, entry in damaged]

    def find_file(self, sha256: str, revision: str) -> Path | None:
        """Return the path of the file with this digest, or else of the manifest of this revision; None without either.
        The path may not exist."""
        if sha256:
            return self._blobs / sha256
        return self._manifests / f"{revision}.json" if revision else None

    def find_latest(self, name: str) -> str | None:
        """Return the revision of the model `name` that was used last, or None if none is complete."""
        for revision in reversed(self._by_last_use()):
            manifest = self.find_manifest(revision)
            if manifest is not None and manifest.name == name:
                return revision
        return None

    def discard_part(self, entry: FileEntry) -> None:
        """Discard a partial download."""
        path = self.blob_path(entry)
        path.with_name(path.name + ".part").unlink(missing_ok=True)

    def link(self, manifest: Manifest) -> Path:
        """Return the folder of a model whose files are all present, and record the use."""
        folder = self._models / manifest.revision
        for entry in manifest.files:
            path = folder / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                path.symlink_to(self.blob_path(entry).resolve())
        temporary = self._manifests / f"{manifest.revision}.partial"
        temporary.write_bytes(manifest.encode())
        temporary.replace(self._manifests / f"{manifest.revision}.json")
        return folder

    def make_room(self, newcomer: Manifest, size_bytes: int, keep: Collection[str]) -> None:
        """Evict until `size_bytes` more of `newcomer` fit: quarantined files first, then files of no complete model,
        then models by last use, never revisions in `keep`. Raises CacheFull."""
        if self._fits(size_bytes):
            return
        for path in self._quarantine.iterdir():
            path.unlink()
        self._remove_unused_blobs(newcomer)
        for revision in self._by_last_use():
            if self._fits(size_bytes):
                return
            if revision not in keep:
                self._evict(revision, newcomer)
        if not self._fits(size_bytes):
            raise CacheFull(f"no room for {size_bytes} bytes of weights beside the models in use")

    def _fits(self, size_bytes: int) -> bool:
        free = shutil.disk_usage(self._blobs).free - RESERVED_FREE_BYTES
        return self._used_bytes() + size_bytes <= self._max_bytes and size_bytes <= free

    def _used_bytes(self) -> int:
        return sum(path.stat().st_size for folder in (self._blobs, self._quarantine) for path in folder.iterdir())

    def _by_last_use(self) -> list[str]:
        return [path.stem for path in sorted(self._manifests.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)]

    def _evict(self, revision: str, newcomer: Manifest) -> None:
        (self._manifests / f"{revision}.json").unlink(missing_ok=True)
        shutil.rmtree(self._models / revision, ignore_errors=True)
        self._remove_unused_blobs(newcomer)

    def _remove_unused_blobs(self, newcomer: Manifest) -> None:
        used = {entry.sha256 for manifest in (newcomer, *self._known_manifests()) for entry in manifest.files}
        for path in self._blobs.iterdir():
            if path.name.removesuffix(".part") not in used:
                path.unlink()

    def _known_manifests(self) -> Iterator[Manifest]:
        for revision in self._by_last_use():
            manifest = self.find_manifest(revision)
            if manifest is not None:
                yield manifest
