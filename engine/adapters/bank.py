"""The adapters that one rank holds: read beside the running steps, kept while they fit, the least recently used first
to go.

A sequence holds its adapter from the moment it may run to its end. Reading, checking and placing an adapter is done by
a thread of its own; steps go on meanwhile, and other sequences with them. One that cannot be had ends the sequences
that wait for it and nothing else. Belongs to one engine.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from engine.adapters.local_adapter import LocalAdapter
from engine.adapters.news import Arrival, Departure, News
from engine.adapters.shelf import Kind, Shelf, padded_rank, slot_bytes
from engine.adapters.step import AdaptedStep, Place
from engine.kernels.cpu import CpuKernels
from engine.kernels.interface import Kernels
from engine.layers.linear import Linear
from engine.models.decoder import Decoder, Layer
from engine.report import BAD_ADAPTER, OUT_OF_CAPACITY, RUNNING
from engine.weight_formats.adapter_files import (
    MAX_RANK,
    WEIGHTS_FILE,
    AdapterError,
    AdapterForm,
    check_fit,
    read_adapter,
)
from engine.weight_formats.stored import Files, StoredTensor, WeightsError

logger = logging.getLogger(__name__)


class NoRoom(Exception):
    """Every adapter that would have to go is in use."""


@dataclass(eq=False)
class _Resident:
    handle: int
    shelf: Shelf
    slot: int
    num_holds: int = 0


class AdapterBank:
    """At most `budget_bytes` of matrices, for one loaded model."""

    def __init__(self, decoder: Decoder, dtype: torch.dtype, budget_bytes: int, kernels: Kernels | None = None) -> None:
        self._decoder, self._dtype, self._budget_bytes = decoder, dtype, budget_bytes
        self._sites = list(decoder.sites())
        self._residents: OrderedDict[str, _Resident] = OrderedDict()  # by digest, the least recently used first
        self._shelves: dict[Kind, Shelf] = {}
        self._used_bytes = 0
        self._next_handle = 1
        self._lock = threading.Lock()  # of the four above
        self._loading: dict[str, Future[None]] = {}
        self._waiting: dict[int, str] = {}  # sequence id -> digest
        self._held: dict[int, str] = {}
        self.news: deque[News] | None = None  # what the other ranks' banks have not been told yet, where there are any
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

    def begin(self, handles: NDArray[np.int32], query_starts: NDArray[np.int32]) -> AdapterBank:
        """A step whose R rows go through these adapters, 0 none."""
        self._step.begin(handles, query_starts)
        return self

    def narrow(self, rows: torch.Tensor) -> None:
        self._step.narrow(rows)

    def follow(self, news: News) -> None:
        """Another rank's bank leads: have what it has. A step that needs an adapter comes after its arrival."""
        if isinstance(news, Departure):
            self._give_back(*self._step.places.pop(news.handle))
            return
        shelf = self._shelves.get(news.kind)
        if shelf is None:
            shelf = Shelf(news.kind, self._sites, self._dtype, self._budget_bytes, self._kernels, news.num_slots)
            self._shelves[news.kind] = shelf
        slot = shelf.take()
        shelf.write(slot, news.matrices)
        self._used_bytes += shelf.slot_bytes
        self._step.places[news.handle] = (shelf, slot)

    # ── for the engine ──

    @property
    def is_preparing(self) -> bool:
        """Whether some sequence waits for its adapter."""
        return bool(self._waiting)

    def is_waiting(self, sequence_id: int) -> bool:
        return sequence_id in self._waiting

    def prepare(self, sequence_id: int, adapter: LocalAdapter) -> int:
        """The adapter's handle, held for the sequence until `forget`; 0 if it has to be read first: `take_ready` tells
        when that is done."""
        handle = self._hold(sequence_id, adapter.digest)
        if not handle:
            self._waiting[sequence_id] = adapter.digest
            if adapter.digest not in self._loading:
                self._loading[adapter.digest] = self._reader.submit(self._load, adapter)
        return handle

    def take_ready(self, timeout_s: float = 0.0) -> list[tuple[int, int, int]]:
        """Sequences whose wait is over: (id, handle, RUNNING), or (id, 0, the finish code of one that cannot be
        served). Waits up to `timeout_s` for the first."""
        if timeout_s and self._loading:
            wait(self._loading.values(), timeout_s, return_when="FIRST_COMPLETED")
        done = {digest: _code_of(future) for digest, future in self._loading.items() if future.done()}
        ready: list[tuple[int, int, int]] = []
        for sequence_id, digest in [each for each in self._waiting.items() if each[1] in done]:
            del self._waiting[sequence_id]
            code = done[digest]
            handle = self._hold(sequence_id, digest) if code == RUNNING else 0
            ready.append((sequence_id, handle, code))
        with self._lock:
            for digest, code in done.items():
                del self._loading[digest]
                if code == RUNNING:
                    self._residents[digest].num_holds -= 1
        return ready

    def forget(self, sequence_id: int) -> None:
        """It ended, wherever it was."""
        self._waiting.pop(sequence_id, None)
        digest = self._held.pop(sequence_id, None)
        if digest is not None:
            with self._lock:
                self._residents[digest].num_holds -= 1

    def _hold(self, sequence_id: int, digest: str) -> int:
        with self._lock:
            resident = self._residents.get(digest)
            if resident is None:
                return 0
            self._residents.move_to_end(digest)
            resident.num_holds += 1
        self._held[sequence_id] = digest
        return resident.handle

    # ── in the thread ──

    @cached_property
    def _reader(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="adapters")

    def _load(self, adapter: LocalAdapter) -> None:
        """Raises AdapterError, WeightsError or NoRoom."""
        folder = Path(adapter.folder)
        form = read_adapter(folder, MAX_RANK)
        check_fit(form, self.sites)
        kind = Kind(padded_rank(form.max_rank), tuple(sorted(form.changes)))
        matrices = self._read(folder / WEIGHTS_FILE, form)
        shelf, slot = self._make_place(kind)
        try:
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
                self.news.append(Arrival(handle, kind, shelf.num_slots, matrices))
        logger.info("an adapter is loaded", extra={"rank": form.max_rank, "size_bytes": shelf.slot_bytes})

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

    def _make_place(self, kind: Kind) -> tuple[Shelf, int]:
        """An empty slot on the shelf of that kind; idle adapters leave for it. Raises AdapterError or NoRoom."""
        size_bytes = slot_bytes(kind, self._sites, self._dtype)
        if size_bytes > self._budget_bytes:
            raise AdapterError(f"the adapter takes {size_bytes} bytes; at most {self._budget_bytes} are kept")
        with self._lock:
            idle = [digest for digest, each in self._residents.items() if not each.num_holds]
            shelf = self._shelves.get(kind)
            while self._used_bytes + size_bytes > self._budget_bytes or (shelf is not None and shelf.is_full):
                if not idle:
                    raise NoRoom
                self._evict(idle.pop(0))
                shelf = self._shelves.get(kind)
            if shelf is None:
                shelf = self._shelves[kind] = Shelf(kind, self._sites, self._dtype, self._budget_bytes, self._kernels)
            self._used_bytes += size_bytes
            return shelf, shelf.take()

    def _evict(self, digest: str) -> None:
        resident = self._residents.pop(digest)
        del self._step.places[resident.handle]
        if self.news is not None:
            self.news.append(Departure(resident.handle))
        self._give_back(resident.shelf, resident.slot)

    def _give_back(self, shelf: Shelf, slot: int) -> None:
        shelf.give(slot)
        self._used_bytes -= shelf.slot_bytes
        if not shelf.num_used:
            del self._shelves[shelf.kind]


def _code_of(future: Future[None]) -> int:
    """What becomes of the sequences that waited."""
    error = future.exception()
    if error is None:
        return RUNNING
    if isinstance(error, NoRoom):
        return OUT_OF_CAPACITY
    if isinstance(error, AdapterError | WeightsError):
        logger.warning("an adapter cannot be served: %s", error)
    else:
        logger.error("an adapter could not be loaded", exc_info=error)
    return BAD_ADAPTER
