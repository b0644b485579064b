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
class _Kept:
    opening: asyncio.Task[LocalAdapter]
    num_calls: int = 0


class NodeAdapters:
    """Call `acquire` before a call starts and `release` after its end."""

    def __init__(self, store: FindsModels) -> None:
        self._store = store
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # by digest, least recently used first

    async def acquire(self, adapter: Adapter) -> LocalAdapter:
        """Return the adapter's local files. Raises Refused, and must then not be released."""
        kept = self._kept.get(adapter.digest)
        if kept is None:
            kept = self._kept[adapter.digest] = _Kept(asyncio.create_task(self._open(adapter)))
        kept.num_calls += 1
        self._kept.move_to_end(adapter.digest)
        try:
            return await asyncio.shield(kept.opening)
        except BaseException:
            self._leave(adapter.digest, kept)
            raise

    def release(self, adapter: Adapter) -> None:
        """Release the adapter of one call."""
        self._leave(adapter.digest, self._kept[adapter.digest])
        idle = [digest for digest, kept in self._kept.items() if not kept.num_calls and kept.opening.done()]
        for digest in idle[: max(0, len(idle) - MAX_IDLE)]:
            del self._kept[digest]
            self._store.release(digest)

    def _leave(self, digest: str, kept: _Kept) -> None:
        kept.num_calls -= 1
        has_failed = kept.opening.done() and (kept.opening.cancelled() or kept.opening.exception() is not None)
        if has_failed and self._kept.get(digest) is kept:
            del self._kept[digest]

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
