"""Finetunes as the gateway uses them: which adapter a call means, from memory where it was looked up a moment ago; and
the object store that uploads go to, opened when the first one comes.

While the database is away, what was found before still answers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from catalog import finetunes
from catalog.base_model import BaseModel, read_base
from catalog.card import ModelCard
from catalog.finetunes import Finetune, Limits
from catalog.listed_finetunes import find_listed
from catalog.registry import Registry
from engine.protocol.tasks import Adapter
from gateway.errors import Reason, Refusal
from storage.database import Database
from storage.errors import StoreUnavailable
from storage.objects import Objects
from telemetry.bounded_cache import BoundedCache
from telemetry.clock import Clock

REMEMBERED_S = 1.0
_MAX_REMEMBERED = 4096
_MAX_UPLOADS = 8  # at once
_MAX_BASES = 32  # remembered: some thousand names each


@dataclass(frozen=True)
class _Found:
    finetune: Finetune | None
    until_s: float


class Finetunes:
    """`objects_url` "" takes no uploads."""

    def __init__(self, database: Database, registry: Registry, objects_url: str, limits: Limits, clock: Clock) -> None:
        self.database = database
        self.limits = limits
        self.uploads = asyncio.Semaphore(_MAX_UPLOADS)
        self._registry = registry
        self._objects_url = objects_url
        self._objects: Objects | None = None
        self._clock = clock
        self._num_changes = 0
        self._bases: BoundedCache[str, BaseModel] = BoundedCache(_MAX_BASES)  # by revision
        self._found: BoundedCache[tuple[str, str], _Found] = BoundedCache(_MAX_REMEMBERED)  # by (account, reference)

    @property
    def objects(self) -> Objects:
        """Raises Refusal where there is no store."""
        if self._objects is None:
            if not self._objects_url:
                raise Refusal(Reason.DEPENDENCY_DOWN)
            self._objects = Objects.connect(self._objects_url)
        return self._objects

    async def adapter(self, account_id: str, reference: str, card: ModelCard) -> Adapter:
        """What `lora` of a call to a model means. Raises Refusal, and StoreUnavailable when that cannot be known."""
        finetune = await self._find(account_id, reference) or find_listed(reference)
        if finetune is None:
            raise Refusal(Reason.FINETUNE_UNKNOWN)
        resolved = self._registry.find(finetune.model)
        if (resolved.card.name if resolved is not None else finetune.model) != card.name:
            raise Refusal(Reason.INPUT_INVALID, f"'/lora' is a finetune of {finetune.model}")
        if finetune.revision is None:
            raise Refusal(Reason.FINETUNE_INCOMPLETE, ", ".join(finetune.missing_files))
        return Adapter(finetune.manifest_name, finetune.revision)

    async def base(self, finetune: Finetune) -> BaseModel | None:
        """What its files are held against when they come; None where too little is known of the model. Raises Refusal,
        and StoreUnavailable."""
        resolved = await self._registry.look_up(finetune.model)
        if resolved is None:
            return None
        revision = resolved.card.revision
        base = self._bases.get(revision)
        if base is None:
            base = await read_base(self.objects, resolved.card)
            if base is not None:
                self._bases.put(revision, base)
        return base

    def forget(self, account_id: str, finetune_id: str) -> None:
        """It was made, brought a file or taken away through this gateway: who calls from now on is answered by that."""
        self._num_changes += 1
        self._found.remove_if(
            lambda key, found: (
                key[0] == account_id or (found.finetune is not None and found.finetune.finetune_id == finetune_id)
            )
        )

    async def _find(self, account_id: str, reference: str) -> Finetune | None:
        key, now_s = (account_id, reference), self._clock.monotonic_s()
        found = self._found.get(key)
        if found is not None and found.until_s > now_s:
            return found.finetune
        num_changes = self._num_changes
        try:
            finetune = await finetunes.find_usable(self.database, account_id, reference)
        except StoreUnavailable:
            if found is None:
                raise
            return found.finetune
        if num_changes != self._num_changes:
            return finetune  # it may be one of them, as it was before
        self._found.put(key, _Found(finetune, now_s + REMEMBERED_S))
        return finetune

    async def close(self) -> None:
        if self._objects is not None:
            await self._objects.close()
