"""Uploads: write parameters to a device through a ring of pinned memory.

Values stored without a scale are read into the ring and are converted and checked on the device. Parameters in other
formats are expanded on the host first, which checks them.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import torch

from engine.checkpoints.dense import Dense
from engine.checkpoints.stored import REALS, Files, Source, StoredTensor, not_finite
from engine.devices.device import Device
from engine.devices.upload_ring import UploadRing


@dataclass(frozen=True, eq=False)
class StoredPiece:
    """A part of a parameter: `destination` on the device, and where its values begin in the stored tensor."""

    stored: StoredTensor
    first_byte: int
    destination: torch.Tensor

    @property
    def dtype(self) -> torch.dtype:
        """The stored type."""
        return REALS[self.stored.dtype]

    @property
    def num_bytes(self) -> int:
        return self.destination.numel() * self.dtype.itemsize


class Uploads:
    """The uploads of one load. Thread-safe. A context that releases the pinned memory at its end."""

    def __init__(self, device: Device, total_bytes: int) -> None:
        self.ring = UploadRing(device, total_bytes)
        self._device = device
        self._read_s: list[float] = []
        self._staged: dict[str, torch.Tensor] = {}  # memory on the device for pieces that are converted
        # By type: the stored tensor and the smallest and largest value of each piece, which are NaN if one value is.
        self._extremes: dict[torch.dtype, list[tuple[StoredTensor, torch.Tensor]]] = defaultdict(list)

    def __enter__(self) -> Uploads:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: object, _traceback: TracebackType | None) -> None:
        self.ring.close()

    def pieces(self, source: Dense, destination: torch.Tensor) -> Iterator[StoredPiece]:
        """Yield the pieces of a parameter for `put`, in file order. Other sources need `expand`."""
        itemsize = REALS[source.stored.dtype].itemsize
        for first_byte, part in _parts(destination, itemsize, self.ring.slot_bytes, 0):
            yield StoredPiece(source.stored, first_byte, part)

    def put(self, files: Files, piece: StoredPiece) -> None:
        """Read one piece and queue its upload. Raises WeightsError, but only `finish` knows the values."""
        with self.ring.slot() as slot:
            data = slot.memory[: piece.num_bytes]
            with self._reading():
                files.read_into(piece.stored, piece.first_byte, memoryview(data.numpy().data))
            with self.ring.uploading(slot):
                values = self._copy(data.view(piece.dtype), piece.destination)
                slot.copied.record()
                self._note(values, piece.stored)
                if values.dtype != piece.destination.dtype or not piece.destination.is_contiguous():
                    piece.destination.copy_(values.view(piece.destination.shape))

    def expand(self, files: Files, source: Source, destination: torch.Tensor) -> None:
        """Expand a parameter on the host and upload it. Raises WeightsError."""
        buffer = torch.empty(source.shape, dtype=destination.dtype)
        with self._reading():
            for first, last in source.pieces():
                source.fill(files, buffer, first, last)
        if destination.is_contiguous():
            self.ring.upload(buffer, destination)
        else:
            destination.copy_(buffer)

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the device with the values of one on the host."""
        found = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device.torch_device)
        self.ring.upload(tensor.contiguous(), found)
        return found

    def finish(self) -> dict[str, float]:
        """Wait for all uploads. Return the seconds that readers have spent reading, in all, and the device's seconds of
        uploads and checks. Raises WeightsError if a value was NaN or infinite."""
        self.ring.finish()
        bad: list[StoredTensor] = []
        for pieces in self._extremes.values():
            is_finite = torch.stack([extremes for _, extremes in pieces]).isfinite().all(1).tolist()
            bad += [stored for (stored, _), finite in zip(pieces, is_finite, strict=True) if not finite]
        if bad:
            raise not_finite(min(bad, key=lambda stored: (str(stored.path), stored.offset)))
        return {"read": sum(self._read_s), "upload": self.ring.copy_us / 1e6, "weight_check": self.ring.check_us / 1e6}

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._read_s.append(time.perf_counter() - started)

    def _copy(self, data: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
        """Queue the copy of stored values to the device. Return them there: in their destination, or staged."""
        if data.dtype == destination.dtype and destination.is_contiguous():
            values = destination.view(-1)
        else:
            values = self._stage("stored", data.nbytes).view(data.dtype)
        values.copy_(data, non_blocking=True)
        return values

    def _note(self, values: torch.Tensor, stored: StoredTensor) -> None:
        """Queue the reduction that shows whether all values are finite."""
        if values.itemsize == 1:  # 8-bit floats have no such reduction; all of them are numbers of bfloat16
            wide = self._stage("checked", 2 * values.numel()).view(torch.bfloat16)
            wide.copy_(values)
            values = wide
        extremes = torch.empty(2, dtype=values.dtype, device=values.device)
        torch.aminmax(values, out=(extremes[0], extremes[1]))
        self._extremes[values.dtype].append((stored, extremes))

    def _stage(self, name: str, num_bytes: int) -> torch.Tensor:
        """Return memory on the device that later work of the stream may overwrite."""
        if name not in self._staged or len(self._staged[name]) < num_bytes:
            size = max(num_bytes, 2 * self.ring.slot_bytes if name == "checked" else self.ring.slot_bytes)
            self._staged[name] = torch.empty(size, dtype=torch.uint8, device=self._device.torch_device)
        return self._staged[name][:num_bytes]


def _parts(
    destination: torch.Tensor, itemsize: int, max_bytes: int, first_byte: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield parts of a destination whose stored values take at most `max_bytes`, and where each begins."""
    if not destination.numel():
        return
    if destination.is_contiguous():
        destination = destination.view(-1)
    row_bytes = destination[0].numel() * itemsize
    if row_bytes > max_bytes:
        for row, part in enumerate(destination):
            yield from _parts(part, itemsize, max_bytes, first_byte + row * row_bytes)
        return
    step = max_bytes // row_bytes
    for first in range(0, len(destination), step):
        yield first_byte + first * row_bytes, destination[first : first + step]
