"""Fine-tunes: resolve the `lora` of a call to an adapter, cached for a second, and open the object store for uploads.

While the database is unavailable, cached results remain valid.
"""

from __future__ import annotations

from dataclasses import dataclass

from catalog import finetunes
from catalog.base_model import BaseModel, read_base
from catalog.card import BASE_MODEL, ModelCard
from catalog.finetunes import Finetune, Limits
from catalog.listed_finetunes import find_listed
from catalog.registry import Registry
from engine.protocol.tasks.text_generation import Adapter
from gateway.errors import Reason, Refusal
from storage.database import Database
from storage.errors import StoreUnavailable
from storage.objects import Objects
from telemetry.bounded_cache import BoundedCache
from telemetry.clock import Clock
from telemetry.fair_share import AccountShares, FairQueue

CACHE_S = 1.0
_MAX_CACHED = 4096
_MAX_UPLOADS = 12  # concurrent
_MAX_CHECKS = 3  # uploaded files that are checked and stored at the same time
_MAX_BASES = 32  # cached base models, with some thousand tensor names each


@dataclass(frozen=True)
class _Found:
    finetune: Finetune | None
    until_s: float


class Finetunes:
    """Fine-tunes of all accounts. An empty `objects_url` disables uploads."""

    def __init__(self, database: Database, registry: Registry, objects_url: str, limits: Limits, clock: Clock) -> None:
        self.database = database
        self.limits = limits
        self.uploads = AccountShares(_MAX_UPLOADS)
        self.checks = FairQueue(_MAX_CHECKS)
        self._registry = registry
        self._objects_url = objects_url
        self._objects: Objects | None = None
        self._clock = clock
        self._num_changes = 0
        self._bases: BoundedCache[str, BaseModel] = BoundedCache(_MAX_BASES)  # by revision
        self._found: BoundedCache[tuple[str, str], _Found] = BoundedCache(_MAX_CACHED)  # by (account, reference)

    @property
    def objects(self) -> Objects:
        """The object store. Raises Refusal if none is configured."""
        if self._objects is None:
            if not self._objects_url:
                raise Refusal(Reason.DEPENDENCY_DOWN)
            self._objects = Objects.connect(self._objects_url)
        return self._objects

    async def adapter(self, account_id: str, reference: str, card: ModelCard) -> Adapter:
        """Return the adapter for the `lora` of a call to a model. Raises Refusal, StoreUnavailable.

        An adapter fits its base model and the base's quantized variants, which have the same layers.
        """
        finetune = await self._find(account_id, reference) or find_listed(reference)
        if finetune is None:
            raise Refusal(Reason.FINETUNE_UNKNOWN)
        resolved = self._registry.find(finetune.model)
        base = resolved.card.name if resolved is not None else finetune.model
        if base not in (card.name, card.properties.get(BASE_MODEL)):
            raise Refusal(Reason.INPUT_INVALID, f"'/lora' is a finetune of {finetune.model}")
        if finetune.revision is None:
            raise Refusal(Reason.FINETUNE_INCOMPLETE, ", ".join(finetune.missing_files))
        return Adapter(finetune.manifest_name, finetune.revision)

    async def base(self, finetune: Finetune) -> BaseModel | None:
        """Return the base model that uploaded files are checked against; None if it is unknown. Raises Refusal,
        StoreUnavailable."""
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
        """Drop cached results after this gateway changed a fine-tune."""
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
            finetune = await finetunes.find_usable(
                self.database, account_id, reference, needs_approval=self.limits.needs_approval
            )
        except StoreUnavailable:
            if found is None:
                raise
            return found.finetune
        if num_changes != self._num_changes:
            return finetune  # a change during the lookup may have made this result stale
        self._found.put(key, _Found(finetune, now_s + CACHE_S))
        return finetune

    async def close(self) -> None:
        if self._objects is not None:
            await self._objects.close()
