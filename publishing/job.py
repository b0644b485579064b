"""Publish one model from a hub or from the object store: fetch its files, check them, store them, and write the row.

The files are fetched into a folder that depends only on the source, so a repeated job continues with the files that are
already there. Knows no leases and no progress rows; `__main__.py` reports the progress to the gateway.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection

from catalog.card import ModelCard, Prices
from catalog.errors import CatalogError, PullError
from catalog.manifest import FileEntry, is_plain_path
from catalog.model_folder import facts_of, gguf_parts, inspect_model
from catalog.publish import Note, publish
from catalog.pull import HubFile, pull, staging_folder_of
from publishing.gguf_reader import read_gguf_model
from storage.database import Database
from storage.objects import Objects
from telemetry.clock import SYSTEM_CLOCK
from tenants.audit import audit_log

MAX_BUCKET_FILES = 1000
_MAX_SUBJECT = 64  # characters, the width of the audit log's column


class Job(Struct, frozen=True, kw_only=True):
    """A model to publish. `location` is a hub repository or a prefix in the object store. `staging` is the folder for
    files that are being fetched."""

    source: Literal["hub", "bucket"]
    location: str
    hub_revision: str
    file: str
    name: str
    prices: Prices | None
    created_by: str
    staging: str
    database_url: str
    objects_url: str


OnProgress = Callable[[str, int, int], None]
"""Called, possibly by another thread, with the current step, and the bytes fetched so far and in total."""


async def run(job: Job, on_progress: OnProgress) -> ModelCard:
    """Publish the model and return its card. Raises CatalogError, StoreError, OSError."""
    database, objects = Database.connect(job.database_url), Objects.connect(job.objects_url)
    try:
        if job.source == "hub":
            folder = await asyncio.to_thread(_fetch_from_hub, job, on_progress)
        else:
            folder = await _fetch_from_bucket(job, objects, on_progress)
        card = await _publish(job, folder, database, objects, on_progress)
        await asyncio.to_thread(shutil.rmtree, folder, True)
        return card
    finally:
        await objects.close()
        await database.close()


def staging_of(job: Job) -> Path:
    """Return the folder that has all files of the job while it runs."""
    if job.source == "hub":
        return staging_folder_of(Path(job.staging), job.location)
    digest = hashlib.sha256(f"{job.objects_url}\0{job.location}".encode()).hexdigest()[:16]
    return Path(job.staging) / f"bucket-{digest}"


async def _publish(job: Job, folder: Path, database: Database, objects: Objects, on_progress: OnProgress) -> ModelCard:
    """Check the files in `folder`, store them, and write the row."""
    num_bytes = await asyncio.to_thread(_size_of, folder)
    on_progress("checking the files", num_bytes, num_bytes)
    model = await asyncio.to_thread(inspect_model, folder / job.file, read_gguf_model)
    facts = await asyncio.to_thread(facts_of, model, job.name, None, supports_tools=supports_tools)
    if job.prices is not None:
        facts = msgspec.structs.replace(facts, prices=job.prices)
    num_files, num_stored = len(model.files), 0

    def on_file(entry: FileEntry, _was_uploaded: bool) -> None:
        nonlocal num_stored
        num_stored += 1
        on_progress(f"stored {entry.path} ({num_stored} of {num_files} files)", num_bytes, num_bytes)

    on_progress("storing the files", num_bytes, num_bytes)
    return await publish(database, objects, model, facts, on_file=on_file, note=_note(job.created_by))


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _note(actor: str) -> Note:
    async def append(connection: AsyncConnection, card: ModelCard) -> None:
        await audit_log.append(
            connection,
            at=SYSTEM_CLOCK.now(),
            actor=actor,
            action="model.publish",
            account_id="",
            subject_id=card.revision[:_MAX_SUBJECT],
            detail=card.name,
        )

    return append


class _Progress:
    """Adds up the bytes of all files of a job."""

    def __init__(self, sizes: dict[str, int], on_progress: OnProgress) -> None:
        self._done = dict.fromkeys(sizes, 0)
        self._total_bytes = sum(sizes.values())
        self._on_progress = on_progress

    def report(self, path: str, done_bytes: int, _size_bytes: int) -> None:
        self._done[path] = done_bytes
        self._on_progress(f"fetching {path}", sum(self._done.values()), self._total_bytes)


def _fetch_from_hub(job: Job, on_progress: OnProgress) -> Path:
    """Download the files from the hub, and return their folder. Raises PullError, PublishError, OSError."""
    progress = _Progress({}, on_progress)

    def on_listed(files: tuple[HubFile, ...]) -> None:
        nonlocal progress
        progress = _Progress({file.path: file.size_bytes for file in files}, on_progress)

    def on_file(path: str, done_bytes: int, size_bytes: int) -> None:
        progress.report(path, done_bytes, size_bytes)

    on_progress("listing the files", 0, 0)
    revision, staging = job.hub_revision, Path(job.staging)
    return pull(job.location, revision, staging, file=job.file, on_listed=on_listed, on_progress=on_file).folder


async def _fetch_from_bucket(job: Job, objects: Objects, on_progress: OnProgress) -> Path:
    """Download the files below the prefix, and return their folder. Raises CatalogError, StoreError, OSError."""
    on_progress("listing the files", 0, 0)
    prefix = job.location.rstrip("/") + "/"
    paths = [key.removeprefix(prefix) for key in await objects.list(prefix)]
    paths = [path for path in paths if _is_wanted(path, job.file)]
    if not paths:
        raise PullError(f"the object store has no model files below {prefix}")
    if len(paths) > MAX_BUCKET_FILES:
        raise PullError(f"there are more than {MAX_BUCKET_FILES} files below {prefix}")
    sizes = {path: (await objects.stat(prefix + path)).size_bytes for path in paths}
    folder, progress = staging_of(job), _Progress(sizes, on_progress)
    for path in paths:

        def on_file(done_bytes: int, size_bytes: int, path: str = path) -> None:
            progress.report(path, done_bytes, size_bytes)

        await objects.download(prefix + path, folder / path, on_progress=on_file)
        on_file(sizes[path], sizes[path])
    return folder


def _is_wanted(path: str, file: str) -> bool:
    """Return True if a file of the object store belongs to the model. Files that are refused by name are wanted, so
    that the check finds them."""
    if not is_plain_path(path):
        return False
    return path in gguf_parts(file) if file else not path.endswith(".gguf")


def supports_tools(model_path: Path) -> bool:
    """Return True if the model supports tool calls; False if the engine is not installed."""
    try:
        from engine.tool_calls.tool_format import supports_tools as is_supported
    except ImportError:
        return False
    return is_supported(model_path)


def describe(error: Exception) -> str:
    """Return why a job failed, for its operator."""
    if isinstance(error, CatalogError):
        return str(error)
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}".rstrip(": ")


def lower_priority() -> None:
    """Let calls on the same machine go first."""
    os.nice(10)
