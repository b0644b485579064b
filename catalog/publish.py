"""A checked folder becomes a model: blobs under their digests, then the manifest, then the row, then the pointer.

Until the row is written nobody sees anything, so a publish that is cut short leaves the catalog as it was; done again
it uploads only what is not there yet.
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
"""What else is to be written in the transaction that publishes a model."""


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
    """Publish `folder` as the current version of `facts.name`; returns its card. `recipe` if it was made from another.

    `on_file(entry, was_uploaded)` is called for each file that is safely in the store. Raises PublishError for a name
    that is built in or an alias, StoreError when a store does not take it.
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
    await objects.put_bytes(manifest_key(card.revision), manifest.encode())
    async with change(database) as connection:
        if facts.name in await read_aliases(connection):
            raise PublishError(f"{facts.name} is an alias; remove it first")
        await write_card(connection, card, clock.now())
        if note is not None:
            await note(connection, card)
    pointer = msgspec.json.encode({"name": card.name, "revision": card.revision})
    await objects.put_bytes(pointer_key(card.name), pointer)
    return card


async def _upload(objects: Objects, folder: ModelFolder, entry: FileEntry) -> bool:
    """Put one file under its digest; False when it was there already."""
    key = blob_key(entry.sha256)
    try:
        if (await objects.stat(key)).size_bytes == entry.size_bytes:
            return False
    except Missing:
        pass
    await objects.put_file(key, folder.path / entry.path, sha256=entry.sha256)
    return True
