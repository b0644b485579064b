"""The adapters that one rank holds: read beside the running steps, kept while they fit, the least recently used first
to go.

Reading, checking and placing an adapter is done by a thread of its own; steps go on meanwhile. None leaves that
somebody holds. Who waits for which, and whose turn it is, `queue.py` knows. Belongs to one engine.
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

import numpy as np
import torch
from numpy.typing import NDArray

from engine.adapters.local_adapter import LocalAdapter
from engine.adapters.queue import Reading
from engine.adapters.slot_pool import AdapterShape, AdapterSize, SlotPool, padded_rank, slot_bytes
from engine.adapters.step import AdaptedStep, Place
from engine.adapters.updates import AdapterAdded, AdapterRemoved, AdapterUpdate
from engine.checkpoints.stored import Files, StoredTensor, WeightsError
from engine.kernels.cpu import CpuKernels
from engine.kernels.interface import Kernels
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
class _Resident:
    handle: int
    shelf: SlotPool
    slot: int
    num_holds: int = 0


class AdapterCache:
    """At most `budget_bytes` of matrices, for one loaded model."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype, budget_bytes: int, kernels: Kernels | None = None) -> None:
        self._decoder, self._dtype, self._budget_bytes = decoder, dtype, budget_bytes
        self._sites = list(decoder.sites())
        self._residents: OrderedDict[str, _Resident] = OrderedDict()  # by digest, the least recently used first
        self._shelves: dict[AdapterShape, SlotPool] = {}
        self._used_bytes = 0
        self._next_handle = 1
        self._lock = threading.Lock()  # of the four above
        self.news: deque[AdapterUpdate] | None = None  # updates not yet sent to other ranks
        places: dict[int, Place] = {}
        self._step = AdaptedStep(places)
        self._kernels = kernels or CpuKernels()

    @property
    def sites(self) -> dict[str, tuple[int, int]]:
        """The modules that an adapter can change, and their (in, out) in the whole model; none where there is no memory
        for one."""
        if not self._budget_bytes:
            return {}
        return {prefix + name: shape for prefix, linear in self._sites for name, shape in linear.whole_shapes.items()}

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    # ── for the runner ──

    @cached_property
    def layers(self) -> list[Layer]:
        """The model's layers with adapters on top; made when the first adapter comes."""
        numbers = {id(linear): number for number, (_, linear) in enumerate(self._sites)}

        def change(linear: Linear) -> Linear:
            number = numbers.get(id(linear))
            return linear if number is None else linear.with_forward(self._step.wrap(number, linear.forward))

        return self._decoder.layers_with(change)

    def begin(self, handles: NDArray[np.int32], query_starts: NDArray[np.int32]) -> AdapterCache:
        """A step whose R rows go through these adapters, 0 none."""
        self._step.begin(handles, query_starts)
        return self

    def narrow(self, rows: torch.Tensor) -> None:
        self._step.narrow(rows)

    def follow(self, news: AdapterUpdate) -> None:
        """Another rank's bank leads: have what it has. A step that needs an adapter comes after its arrival."""
        if isinstance(news, AdapterRemoved):
            self._give_back(*self._step.places.pop(news.handle))
            return
        shelf = self._shelves.get(news.kind)
        if shelf is None:
            shelf = SlotPool(news.kind, self._sites, self._dtype, self._budget_bytes, self._kernels, news.num_slots)
            self._shelves[news.kind] = shelf
        slot = shelf.take()
        shelf.write(slot, news.matrices)
        self._used_bytes += shelf.slot_bytes
        self._step.places[news.handle] = (shelf, slot)

    # ── for the engine ──

    def hold(self, digest: str) -> int:
        """The adapter's handle, good until as many `release`s; 0 if it is not here."""
        with self._lock:
            resident = self._residents.get(digest)
            if resident is None:
                return 0
            self._residents.move_to_end(digest)
            resident.num_holds += 1
            return resident.handle

    def release(self, digest: str) -> bool:
        """One hold less. Whether nobody holds it any more: it may leave when its room is needed."""
        with self._lock:
            resident = self._residents[digest]
            resident.num_holds -= 1
            return not resident.num_holds

    def read(self, adapter: LocalAdapter, may_place: bool = True) -> Future[Reading]:
        """Have an adapter that is not here read, and placed if there is room; or any only looked at."""
        return self._reader.submit(self._load, adapter, may_place)

    def has_room(self, needs: Sequence[AdapterSize]) -> bool:
        """Whether these fit beside the adapters that are held."""
        with self._lock:
            return self._has_room(needs)

    def evictions_for(self, needs: Sequence[AdapterSize]) -> Collection[str]:
        """Adapters that have to leave so that these fit: idle ones, then those that fewest hold."""
        with self._lock:
            missing_bytes = self._used_bytes + sum(each.size_bytes for each in needs) - self._budget_bytes
            full = {each.kind for each in needs if each.kind in self._shelves and self._shelves[each.kind].is_full}
            leavers = []
            for digest, resident in sorted(self._residents.items(), key=lambda each: each[1].num_holds):
                if missing_bytes > 0 or resident.shelf.kind in full:
                    leavers.append(digest)
                    missing_bytes -= resident.shelf.slot_bytes
                    full.discard(resident.shelf.kind)
            return frozenset(leavers)

    # ── in the thread ──

    @cached_property
    def _reader(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="adapters")

    def _load(self, adapter: LocalAdapter, may_place: bool) -> Reading:
        try:
            form = read_adapter(Path(adapter.folder), MAX_RANK)
            check_fit(form, self.sites)
            need = self._need_of(form)
            place = self._make_place(need) if may_place else None
            if place is None:
                return Reading(OUT_OF_CAPACITY, need)
            self._fill(place, adapter, form)
        except (AdapterError, WeightsError) as error:
            logger.warning("an adapter cannot be served: %s", error)
            return Reading(BAD_ADAPTER)
        except Exception as error:
            logger.error("an adapter could not be loaded", exc_info=error)
            return Reading(BAD_ADAPTER)
        logger.info("an adapter is loaded", extra={"rank": form.max_rank, "size_bytes": place[0].slot_bytes})
        return Reading(RUNNING)

    def _fill(self, place: tuple[SlotPool, int], adapter: LocalAdapter, form: AdapterForm) -> None:
        """Read it into its place, and let it be found. Raises AdapterError or WeightsError; the place is empty then."""
        shelf, slot = place
        try:
            matrices = self._read(Path(adapter.folder) / WEIGHTS_FILE, form)
            shelf.write(slot, matrices)
        except BaseException:
            with self._lock:
                self._give_back(shelf, slot)
            raise
        with self._lock:
            handle, self._next_handle = self._next_handle, self._next_handle + 1
            self._step.places[handle] = (shelf, slot)
            # Held until those who wait have taken it.
            self._residents[adapter.digest] = _Resident(handle, shelf, slot, num_holds=1)
            if self.news is not None:
                self.news.append(AdapterAdded(handle, shelf.kind, shelf.num_slots, matrices))

    def _read(self, path: Path, form: AdapterForm) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """A and scale × B of each module, checked to be finite."""
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

    def _need_of(self, form: AdapterForm) -> AdapterSize:
        """Raises AdapterError for an adapter that never fits."""
        kind = AdapterShape(padded_rank(form.max_rank), tuple(sorted(form.changes)))
        size_bytes = slot_bytes(kind, self._sites, self._dtype)
        if size_bytes > self._budget_bytes:
            raise AdapterError(f"the adapter takes {size_bytes} bytes; at most {self._budget_bytes} are kept")
        return AdapterSize(kind, size_bytes)

    def _make_place(self, need: AdapterSize) -> tuple[SlotPool, int] | None:
        """An empty slot on the shelf of that kind; idle adapters leave for it. None, and nothing leaves, if those do
        not suffice."""
        with self._lock:
            if not self._has_room([need]):
                return None
            shelf = self._shelves.get(need.kind)
            while (is_tight := self._used_bytes + need.size_bytes > self._budget_bytes) or (shelf and shelf.is_full):
                idle = (digest for digest, each in self._residents.items() if not each.num_holds)
                self._evict(next(each for each in idle if is_tight or self._residents[each].shelf is shelf))
                shelf = self._shelves.get(need.kind)
            if shelf is None:
                shelf = SlotPool(need.kind, self._sites, self._dtype, self._budget_bytes, self._kernels)
                self._shelves[need.kind] = shelf
            self._used_bytes += need.size_bytes
            return shelf, shelf.take()

    def _has_room(self, needs: Sequence[AdapterSize]) -> bool:
        idle = [each.shelf for each in self._residents.values() if not each.num_holds]
        held_bytes = self._used_bytes - sum(shelf.slot_bytes for shelf in idle)
        if held_bytes + sum(each.size_bytes for each in needs) > self._budget_bytes:
            return False
        shelves = [self._shelves[each.kind] for each in needs if each.kind in self._shelves]
        return all(shelves.count(shelf) <= shelf.num_slots - shelf.num_used + idle.count(shelf) for shelf in shelves)

    def _evict(self, digest: str) -> None:
        resident = self._residents.pop(digest)
        del self._step.places[resident.handle]
        if self.news is not None:
            self.news.append(AdapterRemoved(resident.handle))
        self._give_back(resident.shelf, resident.slot)

    def _give_back(self, shelf: SlotPool, slot: int) -> None:
        shelf.give(slot)
        self._used_bytes -= shelf.slot_bytes
        if not shelf.num_used:
            del self._shelves[shelf.kind]
