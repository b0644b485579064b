"""UploadRing: pinned slots through which several threads copy host data to a device, on a stream of its own.

A thread takes a slot, fills it, and queues a copy of it. The slot is taken again when that copy has ended. Without
enough pinned memory the ring is smaller, or its slots are pageable, and copies then wait for the host. Knows no files.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterator

import torch

from engine.devices.device import Device, Event, PinnedMemory, Stream

logger = logging.getLogger(__name__)

SLOT_BYTES = 32 << 20
NUM_SLOTS = 8
_PAGE_BYTES = 4096


class Slot:
    """One piece of host memory. `memory` is uint8 [slot_bytes]."""

    def __init__(self, memory: torch.Tensor, events: tuple[Event, Event, Event]) -> None:
        self.memory = memory
        self.started, self.copied, self.finished = events
        self.is_queued = False


class UploadRing:
    """The slots and the stream. Thread-safe. Call `close`, also after an error.

    `copy_us` and `check_us` are the device's microseconds of finished copies, and of the work queued behind them.
    `wait_us` is the time that threads have waited for a slot.
    """

    def __init__(
        self, device: Device, total_bytes: int, slot_bytes: int = SLOT_BYTES, num_slots: int = NUM_SLOTS
    ) -> None:
        """The ring holds at most `total_bytes`, the size of everything that will be uploaded, rounded up to pages."""
        self.copy_us = self.check_us = self.wait_us = 0.0
        self.slot_bytes = min(slot_bytes, -(-max(total_bytes, 1) // _PAGE_BYTES) * _PAGE_BYTES)
        self.device = device
        self._stream: Stream = device.stream()
        self._pinned: list[PinnedMemory] = []
        self._lock = threading.Lock()
        self._free: queue.SimpleQueue[Slot] = queue.SimpleQueue()
        wanted = min(num_slots, -(-max(total_bytes, 1) // self.slot_bytes))
        try:
            for memory in self._allocate(wanted):
                self._free.put(Slot(memory, (device.event(), device.event(), device.event())))
        except BaseException:
            self.close()
            raise

    @property
    def pinned_bytes(self) -> int:
        return sum(len(each.tensor) for each in self._pinned)

    @contextlib.contextmanager
    def slot(self) -> Iterator[Slot]:
        """Wait for a slot and return it to the ring at the end. The slot's content is undefined."""
        started = time.perf_counter()
        slot = self._free.get()
        try:
            self._await(slot)
            with self._lock:
                self.wait_us += (time.perf_counter() - started) * 1e6
            yield slot
        finally:
            self._free.put(slot)

    @contextlib.contextmanager
    def uploading(self, slot: Slot) -> Iterator[None]:
        """Context in which the work that reads the slot is queued, by one thread at a time.

        Record `slot.copied` behind the copy; work after it is counted as a check.
        """
        with self._lock, self._stream.use():
            slot.started.record()
            slot.copied.record()
            try:
                yield
            finally:
                slot.finished.record()
                slot.is_queued = True

    def upload(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        """Copy a contiguous host tensor to a contiguous one of the same type on the device."""
        data, target = (each.reshape(-1).view(torch.uint8) for each in (source, destination))
        for first in range(0, len(data), self.slot_bytes):
            piece = data[first : first + self.slot_bytes]
            with self.slot() as slot:
                slot.memory[: len(piece)].copy_(piece)
                with self.uploading(slot):
                    target[first : first + len(piece)].copy_(slot.memory[: len(piece)], non_blocking=True)
                    slot.copied.record()

    def finish(self) -> None:
        """Wait for all copies. To be called when no thread holds a slot."""
        for _ in range(self._free.qsize()):
            with self.slot():
                pass

    def close(self) -> None:
        """Wait for all copies and release the memory. To be called when no thread holds a slot."""
        try:
            self.finish()
        finally:
            pinned, self._pinned = self._pinned, []
            self._free = queue.SimpleQueue()
            for each in pinned:
                each.release()

    def _await(self, slot: Slot) -> None:
        """Wait until nothing queued reads a slot."""
        if not slot.is_queued:
            return
        slot.finished.wait()
        slot.is_queued = False
        with self._lock:
            self.copy_us += slot.copied.us_since(slot.started)
            self.check_us += slot.finished.us_since(slot.copied)

    def _allocate(self, num_slots: int) -> Iterator[torch.Tensor]:
        """Pin memory until none is left. Yields pageable memory if none can be pinned at all."""
        reason = ""
        while len(self._pinned) < num_slots and not reason:
            try:
                self._pinned.append(self.device.pin(self.slot_bytes))
            except MemoryError as error:
                reason = str(error)
            else:
                yield self._pinned[-1].tensor
        if not reason:
            return
        sizes = {"pinned_bytes": self.pinned_bytes, "wanted_bytes": num_slots * self.slot_bytes, "reason": reason}
        logger.warning("less memory was pinned than wanted, so weights load more slowly", extra=sizes)
        if not self._pinned:
            yield from (torch.empty(self.slot_bytes, dtype=torch.uint8) for _ in range(num_slots))
