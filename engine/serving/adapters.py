"""LoRA adapters of this node's calls: their files on disk, verified, kept while in use and for some time afterwards.

An adapter is stored like a model: a manifest under its digest, two files under theirs. The model's process decides
which adapters are in memory (`engine/adapters/cache.py`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from engine.adapters.local_adapter import LocalAdapter
from engine.protocol.tasks.text_generation import Adapter
from engine.serving.disk_cache import CacheFull
from engine.serving.model_store import FindsModels, ModelUnavailable
from engine.tasks.work import Refused
from storage.errors import StoreError

MAX_IDLE = 64  # unused adapters that stay ready on disk; the disk cache may drop others


@dataclass(eq=False)
class _CachedAdapter:
    opening: asyncio.Task[LocalAdapter]
    num_calls: int = 0


class NodeAdapters:
    """Call `acquire` before a call starts and `release` after its end."""

    def __init__(self, store: FindsModels) -> None:
        self._store = store
        self._cached: OrderedDict[str, _CachedAdapter] = OrderedDict()  # digest -> adapter, least recently used first

    async def acquire(self, adapter: Adapter) -> LocalAdapter:
        """Return the adapter's local files. Raises Refused, and must then not be released."""
        cached = self._cached.get(adapter.digest)
        if cached is None:
            cached = self._cached[adapter.digest] = _CachedAdapter(asyncio.create_task(self._open(adapter)))
        cached.num_calls += 1
        self._cached.move_to_end(adapter.digest)
        try:
            return await asyncio.shield(cached.opening)
        except BaseException:
            self._end_use(adapter.digest, cached)
            raise

    def release(self, adapter: Adapter) -> None:
        """Release the adapter of one call."""
        self._end_use(adapter.digest, self._cached[adapter.digest])
        idle = [digest for digest, cached in self._cached.items() if not cached.num_calls and cached.opening.done()]
        for digest in idle[: max(0, len(idle) - MAX_IDLE)]:
            del self._cached[digest]
            self._store.release(digest)

    def _end_use(self, digest: str, cached: _CachedAdapter) -> None:
        cached.num_calls -= 1
        has_failed = cached.opening.done() and (cached.opening.cancelled() or cached.opening.exception() is not None)
        if has_failed and self._cached.get(digest) is cached:
            del self._cached[digest]

    async def _open(self, adapter: Adapter) -> LocalAdapter:
        try:
            local = await self._store.open(adapter.name, adapter.digest)
        except ModelUnavailable as error:
            raise Refused("model_unavailable", f"the adapter: {error}", is_retryable=True) from error
        except CacheFull as error:
            raise Refused("out_of_capacity", str(error), is_retryable=True) from error
        except (StoreError, OSError) as error:
            raise Refused("out_of_capacity", "the adapter's files cannot be fetched now", is_retryable=True) from error
        return LocalAdapter(adapter.digest, str(local.folder))
