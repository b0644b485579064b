"""Publish a validated model folder: upload files and manifest, write the database row, then the pointer object.

The model becomes visible with the row, so an interrupted publish leaves the catalog unchanged. A repeated publish
uploads only missing files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from catalog.builtin import builtin_models
from catalog.card import CardFacts, ModelCard, card_of, manifest_of
from catalog.errors import PublishError
from catalog.manifest import FileEntry, Recipe, blob_key, entry_of, manifest_key, pointer_key
from catalog.model_folder import ModelFolder
from catalog.rows import change, read_aliases, write_card
from storage.database import Database
from storage.errors import Missing
from storage.objects import Objects
from telemetry.clock import SYSTEM_CLOCK, Clock

OnFile = Callable[[FileEntry, bool], None]
Note = Callable[[AsyncConnection, ModelCard], Awaitable[None]]
"""Appends an audit entry in the transaction that publishes a model."""


async def publish(
    database: Database,
    objects: Objects,
    folder: ModelFolder,
    facts: CardFacts,
    *,
    recipe: Recipe | None = None,
    builtin_names: Collection[str] | None = None,
    on_file: OnFile | None = None,
    note: Note | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> ModelCard:
    """Publish `folder` as the current version of `facts.name` and return its card. `recipe` is for quantized variants.

    `on_file(entry, was_uploaded)` is called for each file once it is in the object store. Raises PublishError if the
    name is built in or an alias, and StoreError.
    """
    builtin = builtin_models().keys() if builtin_names is None else builtin_names
    if facts.name in builtin:
        raise PublishError(f"{facts.name} is built in and cannot be replaced")
    files = []
    for path in folder.files:
        entry = await asyncio.to_thread(entry_of, folder.path, path)
        was_uploaded = await _upload(objects, folder, entry)
        if on_file:
            on_file(entry, was_uploaded)
        files.append(entry)
    manifest = manifest_of(facts, folder.architecture, tuple(files), recipe)
    card = card_of(facts, manifest, "published")
    async with change(database) as connection:
        if facts.name in await read_aliases(connection):
            raise PublishError(f"{facts.name} is an alias: remove the alias first")
        await _check_files(objects, files)
        await objects.put_bytes(manifest_key(card.revision), manifest.encode())
        await write_card(connection, card, clock.now())
        if note is not None:
            await note(connection, card)
    pointer = msgspec.json.encode({"name": card.name, "revision": card.revision})
    await objects.put_bytes(pointer_key(card.name), pointer)
    return card


async def _check_files(objects: Objects, files: Collection[FileEntry]) -> None:
    """Raises PublishError if `unpublish` has deleted a file since its upload, because no manifest named it."""
    for entry in files:
        try:
            await objects.stat(blob_key(entry.sha256))
        except Missing:
            raise PublishError(f"{entry.path} was deleted with another model meanwhile: publish again") from None


async def _upload(objects: Objects, folder: ModelFolder, entry: FileEntry) -> bool:
    """Upload one file; return False if the object store already has it."""
    key = blob_key(entry.sha256)
    try:
        if (await objects.stat(key)).size_bytes == entry.size_bytes:
            return False
    except Missing:
        pass
    await objects.put_file(key, folder.path / entry.path, sha256=entry.sha256)
    return True
