"""Adapter cache: the LoRA adapters in a rank's memory. The least recently used idle one is evicted first.

A thread reads and checks adapters and writes them to slots while steps continue. Adapters with references are never
evicted. `queue.py` knows which sequence waits for which adapter.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from engine.adapters.local_adapter import LocalAdapter
from engine.adapters.queue import LoadResult
from engine.adapters.slot_pool import AdapterShape, AdapterSize, SlotPool, padded_rank, slot_bytes
from engine.adapters.step import AdaptedStep, AdapterSlot
from engine.adapters.updates import AdapterAdded, AdapterRemoved, AdapterUpdate
from engine.arrays import Ints, Longs
from engine.checkpoints.stored import Files, StoredTensor, WeightsError
from engine.kernels.cpu import CpuKernels
from engine.kernels.reference import Kernels
from engine.layers.linear import Linear
from engine.models.decoder import Decoder, Layer
from engine.report import BAD_ADAPTER, OUT_OF_CAPACITY, RUNNING
from weight_files.adapter_files import (
    MAX_RANK,
    WEIGHTS_FILE,
    AdapterError,
    AdapterForm,
    check_fit,
    read_adapter,
)

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _CachedAdapter:
    handle: int
    pool: SlotPool
    slot: int
    num_references: int = 0


class AdapterCache:
    """The adapters of one engine: at most `budget_bytes` of matrices for one loaded model."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype, budget_bytes: int, kernels: Kernels | None = None) -> None:
        self._decoder, self._dtype, self._budget_bytes = decoder, dtype, budget_bytes
        self._sites = list(decoder.sites())
        self._lock = threading.Lock()  # guards the four attributes below
        self._cached: OrderedDict[str, _CachedAdapter] = OrderedDict()  # digest -> adapter, least recently used first
        self._pools: dict[AdapterShape, SlotPool] = {}
        self._used_bytes = 0
        self._next_handle = 1
        self.updates: deque[AdapterUpdate] | None = None  # not yet sent to the other ranks; None if there are none
        adapter_slots: dict[int, AdapterSlot] = {}
        self._kernels = kernels or CpuKernels()
        self._step = AdaptedStep(adapter_slots, self._kernels, decoder.device)

    @property
    def sites(self) -> dict[str, tuple[int, int]]:
        """Modules that an adapter can change -> (in, out) in the whole model. Empty if there is no memory for any."""
        if not self._budget_bytes:
            return {}
        return {prefix + name: shape for prefix, linear in self._sites for name, shape in linear.whole_shapes.items()}

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    # ── for the runner ──

    @cached_property
    def layers(self) -> list[Layer]:
        """The model's layers with adapters applied. Made when the first adapter is used."""
        numbers = {id(linear): number for number, (_, linear) in enumerate(self._sites)}

        def change(linear: Linear) -> Linear:
            number = numbers.get(id(linear))
            return linear if number is None else linear.with_forward(self._step.wrap(number, linear.forward))

        return self._decoder.layers_with(change)

    def begin(self, handles: Ints, query_starts: Ints, logit_rows: Longs) -> AdapterCache:
        """Begin a step whose rows [R] use the adapters `handles`, 0 for none. All arrays are on the host."""
        self._step.begin(handles, query_starts, logit_rows)
        return self

    def narrow(self) -> None:
        self._step.narrow()

    def apply(self, update: AdapterUpdate) -> None:
        """Apply an update of the leading rank. Precedes every step that uses the adapter."""
        if isinstance(update, AdapterRemoved):
            self._free_slot(*self._step.adapter_slots.pop(update.handle))
            return
        pool = self._pools.get(update.shape)
        if pool is None:
            pool = self._new_pool(update.shape, update.num_slots)
        slot = pool.take()
        pool.write(slot, update.matrices)
        self._used_bytes += pool.slot_bytes
        self._step.adapter_slots[update.handle] = (pool, slot)

    # ── for the engine ──

    def acquire(self, digest: str) -> int:
        """Add a reference to an adapter and return its handle; 0 if it is not cached."""
        with self._lock:
            cached = self._cached.get(digest)
            if cached is None:
                return 0
            self._cached.move_to_end(digest)
            cached.num_references += 1
            return cached.handle

    def release(self, digest: str) -> bool:
        """Remove a reference. Return True if that was the last: the adapter may now be evicted."""
        with self._lock:
            cached = self._cached[digest]
            cached.num_references -= 1
            return not cached.num_references

    def load(self, adapter: LocalAdapter, may_place: bool = True) -> Future[LoadResult]:
        """Read an adapter and place it if there is room. Without `may_place`, only check its files."""
        return self._reader.submit(self._load, adapter, may_place)

    def has_room(self, sizes: Sequence[AdapterSize]) -> bool:
        """Return True if these adapters fit beside the referenced ones."""
        with self._lock:
            return self._has_room(sizes)

    def evictions_for(self, sizes: Sequence[AdapterSize]) -> Collection[str]:
        """Return the adapters to evict so that these fit: idle ones first, then those with the fewest references."""
        with self._lock:
            missing_bytes = self._used_bytes + sum(each.num_bytes for each in sizes) - self._budget_bytes
            full = {each.shape for each in sizes if each.shape in self._pools and self._pools[each.shape].is_full}
            evicted = []
            for digest, cached in sorted(self._cached.items(), key=lambda each: each[1].num_references):
                if missing_bytes > 0 or cached.pool.shape in full:
                    evicted.append(digest)
                    missing_bytes -= cached.pool.slot_bytes
                    full.discard(cached.pool.shape)
            return frozenset(evicted)

    # ── in the reader thread ──

    @cached_property
    def _reader(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="adapters")

    def _load(self, adapter: LocalAdapter, may_place: bool) -> LoadResult:
        try:
            form = read_adapter(Path(adapter.folder), MAX_RANK)
            check_fit(form, self.sites)
            size = self._size_of(form)
            adapter_slot = self._allocate(size) if may_place else None
            if adapter_slot is None:
                return LoadResult(OUT_OF_CAPACITY, size)
            self._fill(adapter_slot, adapter, form)
        except (AdapterError, WeightsError) as error:
            logger.warning("adapter rejected: %s", error)
            return LoadResult(BAD_ADAPTER)
        except Exception as error:
            logger.error("adapter failed to load", exc_info=error)
            return LoadResult(BAD_ADAPTER)
        logger.info("adapter loaded", extra={"rank": form.max_rank, "size_bytes": adapter_slot[0].slot_bytes})
        return LoadResult(RUNNING)

    def _fill(self, adapter_slot: AdapterSlot, adapter: LocalAdapter, form: AdapterForm) -> None:
        """Read an adapter into its slot and cache it with one reference. Frees the slot if that fails.

        Raises AdapterError or WeightsError.
        """
        pool, slot = adapter_slot
        try:
            matrices = self._read(Path(adapter.folder) / WEIGHTS_FILE, form)
            pool.write(slot, matrices)
        except BaseException:
            with self._lock:
                self._free_slot(pool, slot)
            raise
        with self._lock:
            handle, self._next_handle = self._next_handle, self._next_handle + 1
            self._step.adapter_slots[handle] = (pool, slot)
            self._cached[adapter.digest] = _CachedAdapter(handle, pool, slot, num_references=1)
            if self.updates is not None:
                self.updates.append(AdapterAdded(handle, pool.shape, pool.num_slots, matrices))

    def _read(self, path: Path, form: AdapterForm) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Return A and scale × B of each module. Raises AdapterError if a value is not finite."""
        matrices = {}
        with Files() as files:
            for module, change in form.changes.items():
                a, b = (
                    files.read_reals(StoredTensor(path, name, each.dtype, each.shape, each.offset, each.size_bytes))
                    for name, each in ((change.a_name, change.a), (change.b_name, change.b))
                )
                matrices[module] = (a.to(self._dtype), b.mul_(change.scale).to(self._dtype))
        if not all(torch.isfinite(matrix).all() for pair in matrices.values() for matrix in pair):
            raise AdapterError(f"{WEIGHTS_FILE}: the scaled matrices are too large for {self._dtype}")
        return matrices

    def _size_of(self, form: AdapterForm) -> AdapterSize:
        """Return the memory an adapter needs. Raises AdapterError if it exceeds the whole budget."""
        shape = AdapterShape(padded_rank(form.max_rank), tuple(sorted(form.changes)))
        num_bytes = slot_bytes(shape, self._sites, self._dtype)
        if num_bytes > self._budget_bytes:
            raise AdapterError(f"the adapter needs {num_bytes} bytes; the adapter cache has {self._budget_bytes}")
        return AdapterSize(shape, num_bytes)

    def _allocate(self, size: AdapterSize) -> AdapterSlot | None:
        """Return an empty slot, evicting idle adapters; None, evicting nothing, if that does not make enough room."""
        with self._lock:
            if not self._has_room([size]):
                return None
            pool = self._pools.get(size.shape)
            while (is_tight := self._used_bytes + size.num_bytes > self._budget_bytes) or (pool and pool.is_full):
                idle = (digest for digest, each in self._cached.items() if not each.num_references)
                self._evict(next(each for each in idle if is_tight or self._cached[each].pool is pool))
                pool = self._pools.get(size.shape)
            if pool is None:
                pool = self._new_pool(size.shape)
            slot = pool.take()
            self._used_bytes += size.num_bytes
            return pool, slot

    def _new_pool(self, shape: AdapterShape, num_slots: int = 0) -> SlotPool:
        device = self._decoder.device
        pool = SlotPool(shape, self._sites, self._dtype, self._budget_bytes, self._kernels, num_slots, device)
        self._pools[shape] = pool
        return pool

    def _has_room(self, sizes: Sequence[AdapterSize]) -> bool:
        idle = [each.pool for each in self._cached.values() if not each.num_references]
        referenced_bytes = self._used_bytes - sum(pool.slot_bytes for pool in idle)
        if referenced_bytes + sum(each.num_bytes for each in sizes) > self._budget_bytes:
            return False
        pools = [self._pools[each.shape] for each in sizes if each.shape in self._pools]
        return all(pools.count(pool) <= pool.num_slots - pool.num_used + idle.count(pool) for pool in pools)

    def _evict(self, digest: str) -> None:
        cached = self._cached.pop(digest)
        del self._step.adapter_slots[cached.handle]
        if self.updates is not None:
            self.updates.append(AdapterRemoved(cached.handle))
        self._free_slot(cached.pool, cached.slot)

    def _free_slot(self, pool: SlotPool, slot: int) -> None:
        pool.free(slot)
        self._used_bytes -= pool.slot_bytes
        if not pool.num_used:
            del self._pools[pool.shape]
