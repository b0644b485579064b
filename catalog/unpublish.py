"""Remove a published model: its database row, then its pointer, manifests and files in the object store.

Files that another manifest names are kept. A removal that is interrupted after the row leaves unused files behind.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from catalog.aliases import follow
from catalog.builtin import builtin_models
from catalog.card import ModelCard, decode_card, parse_model_id
from catalog.errors import PublishError
from catalog.manifest import blob_key, manifest_key, pointer_key
from catalog.rows import change, delete_card, read_aliases, read_cards
from storage.database import Database
from storage.errors import Missing
from storage.objects import Objects

Note = Callable[[AsyncConnection, ModelCard], Awaitable[None]]
"""Appends an audit entry in the transaction that removes a model."""


@dataclass(frozen=True)
class Unpublished:
    """A removed model, and the size of its files: deleted ones, and ones that other models share."""

    card: ModelCard
    deleted_bytes: int
    kept_bytes: int


async def unpublish(database: Database, objects: Objects, name: str, *, note: Note | None = None) -> Unpublished:
    """Remove all versions of a published model. Replicas that nodes have loaded stay loaded.

    Raises PublishError if the model is built in, does not exist, or is the target of an alias; InvalidModelId;
    StoreError.
    """
    name = parse_model_id(name)
    if name in builtin_models():
        raise PublishError(f"{name} is built in and cannot be removed")
    async with change(database) as connection:
        aliases = await read_aliases(connection)
        if name in aliases:
            raise PublishError(f"{name} is an alias: remove it with `hearth model alias {name} --remove`")
        if users := [alias for alias in aliases if follow(aliases, alias) == name]:
            raise PublishError(f"{name} is the target of {', '.join(users)}: remove or change these aliases first")
        text = (await read_cards(connection)).get(name)
        if text is None:
            raise PublishError(f"there is no published model {name}")
        card = decode_card(text)
        await delete_card(connection, name)
        if note is not None:
            await note(connection, card)
    await objects.delete(pointer_key(name))
    async with change(database):  # no other process publishes, and so relies on a shared file, meanwhile
        deleted_bytes, kept_bytes = await _delete_files(objects, name)
    return Unpublished(card, deleted_bytes, kept_bytes)


async def _delete_files(objects: Objects, name: str) -> tuple[int, int]:
    """Delete the manifests of `name` and the files that only they name. Return the bytes deleted and kept."""
    own_revisions: list[str] = []
    own: dict[str, int] = {}
    shared: set[str] = set()
    for key in await objects.list(manifest_key("").removesuffix(".json")):
        try:
            manifest: dict[str, Any] = json.loads(await objects.get_bytes(key))
        except Missing:
            continue
        files = {file["sha256"]: file["size_bytes"] for file in manifest["files"]}
        if manifest["name"] == name:
            own_revisions.append(key)
            own |= files
        else:
            shared |= files.keys()
    for sha256 in own.keys() - shared:
        await objects.delete(blob_key(sha256))
    for key in own_revisions:
        await objects.delete(key)
    kept_bytes = sum(size_bytes for sha256, size_bytes in own.items() if sha256 in shared)
    return sum(own.values()) - kept_bytes, kept_bytes
