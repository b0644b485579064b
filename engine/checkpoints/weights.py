"""Weights on disk -> parameters in place. The one door through which weights enter.

Headers are checked before a byte of data is read; then several threads read every tensor straight into its destination,
converted on the way only where it is stored otherwise. Safetensors and GGUF are read; a pickle never is, nothing is
mapped, and nothing that a checkpoint brings is run. Knows no architecture: a family names its parameters and where they
go, and `weight_formats/` knows what they are made of.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import torch

from engine.checkpoints.folder import find_safetensors, read_quantization, why_nothing
from engine.checkpoints.gguf_file import GgufError, find_gguf, read_gguf
from engine.checkpoints.part import Part
from engine.checkpoints.placement import usual_place
from engine.checkpoints.quantization import is_idle
from engine.checkpoints.quantized import PackedForm, PackedSlot, QuantizedTensor
from engine.checkpoints.stored import REALS, Files, Source, StoredTensor, WeightsError, name_few
from weight_files.safetensors_header import HeaderError

__all__ = ["Checkpoint", "LoadCancelled", "Progress", "WeightsError", "check", "load", "open_checkpoint"]

logger = logging.getLogger(__name__)

Whole = torch.Tensor | PackedSlot
Destination = Whole | Part

_MAX_THREADS = 8
_MAX_BIAS_BYTES = 1 << 24  # of one that is looked at for being of nothing
_TELL_EVERY_S = 5.0


class LoadCancelled(Exception):
    """The load was given up by whoever asked for it."""


class Progress:
    """How far a load is, for others to look at, and their way to end it. Safe to use from any thread."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.done_bytes = 0
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """End the load after the pieces that are being read; `load` then raises LoadCancelled."""
        self._cancelled.set()

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self.done_bytes += num_bytes


class Checkpoint:
    """What is stored, and the parameters that it makes up. `entries` are the names of parameters that it has."""

    def __init__(
        self,
        stored: Mapping[str, StoredTensor],
        find: Callable[[str], Source | None],
        is_idle: Callable[[str], bool],
    ) -> None:
        """`find` makes a parameter; `is_idle` tells of a stored tensor whether it may stay unread."""
        self._stored = stored
        self._find = find
        self._is_idle = is_idle
        self._sources: dict[str, Source | None] = {}

    @property
    def entries(self) -> Collection[str]:
        return _Names(self)

    @property
    def dtype(self) -> torch.dtype:
        """The floating type that most bytes have; bfloat16 where most are quantised."""
        sizes: Counter[str] = Counter()
        for tensor in self._stored.values():
            sizes[tensor.dtype] += tensor.size_bytes
        most = max(sizes, key=lambda name: sizes[name], default="F32")
        dtype = REALS.get(most, torch.bfloat16)
        return dtype if dtype in (torch.float32, torch.float16, torch.bfloat16) else torch.bfloat16

    @property
    def usual_place(self) -> int:
        """Where within a line of the processor's cache most of its bytes lie in the files."""
        return usual_place(self._stored.values())

    def without(self, prefixes: tuple[str, ...]) -> Checkpoint:
        """Return the checkpoint without tensors whose names start with one of `prefixes`."""
        if not prefixes:
            return self
        stored = {name: tensor for name, tensor in self._stored.items() if not name.startswith(prefixes)}
        return Checkpoint(stored, self._find, self._is_idle)

    def find(self, name: str) -> Source | None:
        """Return the parameter `name` after checking its parts; None if absent. Raises WeightsError."""
        if name not in self._sources:
            source = self._find(name)
            if source is not None:
                source.check()
            self._sources[name] = source
        return self._sources[name]

    def packed_form(self, name: str) -> PackedForm | None:
        """Return the packed form of the matrix `name`; None if layers cannot compute with the stored form. Raises
        WeightsError."""
        form = getattr(self.find(name), "packed_form", None)
        if form is None:
            return None
        with Files() as files:
            found: PackedForm | None = form(files)
            return found

    def read_quantized(self, name: str) -> QuantizedTensor | None:
        """Return the matrix `name` in packed form; None if it is stored otherwise.

        Raises WeightsError.
        """
        read = getattr(self.find(name), "read_quantized", None)
        if read is None:
            return None
        with Files() as files:
            packed: QuantizedTensor | None = read(files)
            return packed

    def hint(self, name: str) -> str:
        """Explain to the user what is stored instead of a missing parameter."""
        base = name.removesuffix(".weight")
        others = sorted(other for other in self._stored if other.startswith((f"{base}.", f"{name}_")))
        return f"; {others[0]} is there, which quantization_config does not explain" if others else ""

    def unread(self, sources: Collection[Source]) -> list[str]:
        """Return stored tensors, in order, that no source uses and that must not be ignored."""
        read = {part.name for source in sources for part in source.parts}
        return sorted(name for name in self._stored.keys() - read if not self._is_harmless(name, read))

    def _is_harmless(self, name: str, read: set[str]) -> bool:
        """Return True for tied heads, recomputed positions, unsupported optional parts, and zero biases."""
        if name.endswith(".rotary_emb.inv_freq") or self._is_idle(name):
            return True
        if name.startswith("lm_head.") and not any(other.startswith("lm_head.") for other in read):
            return True
        base, stored = name.removesuffix(".bias"), self._stored[name]
        is_bias = base != name and f"{base}.qweight" in read
        if not is_bias or stored.dtype not in REALS or stored.size_bytes > _MAX_BIAS_BYTES:
            return False
        with Files() as files:  # GPTQ tools write zero biases for models without biases
            return not files.read_reals(stored).any()


class _Names(Collection[str]):
    """The parameter names of a checkpoint. A lookup may combine several stored tensors into a parameter."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._checkpoint.find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint._stored)

    def __len__(self) -> int:
        return len(self._checkpoint._stored)


def open_checkpoint(model_dir: Path) -> Checkpoint:
    """Read and check the headers of a model's weights. Raises WeightsError.

    Accepts `model.safetensors`, the shards named in its index, a single safetensors file, or a `.gguf` (also as
    `model_dir`).
    """
    try:
        stored = find_safetensors(model_dir)
        if stored is not None:
            scheme = read_quantization(model_dir)
            return Checkpoint(stored, lambda name: scheme.find(name, stored), is_idle)
        path = find_gguf(model_dir)
        if path is not None:
            return _open_gguf(path)
    except (HeaderError, GgufError) as error:
        raise WeightsError(str(error)) from error
    raise WeightsError(why_nothing(model_dir))


def check(
    checkpoint: Checkpoint, destinations: Mapping[str, Destination], *, is_whole: bool = True
) -> dict[str, Source]:
    """Return the source of every destination after checking shapes and types. If `is_whole`, no stored tensor may be
    left over (a rank's part leaves others).

    Raises WeightsError naming the first few problems and counting the rest. Destinations may be on the meta device: no
    weight is read.
    """
    sources: dict[str, Source] = {}
    missing: list[str] = []
    for name, destination in destinations.items():
        source = checkpoint.find(name)
        if source is None:
            missing.append(name)
            continue
        if source.shape != tuple(destination.shape):
            raise WeightsError(f"{name} has shape {list(source.shape)}, the config says {list(destination.shape)}")
        sources[name] = source
    if missing:
        raise WeightsError(f"{name_few(missing)} missing{checkpoint.hint(missing[0])}")
    unread = checkpoint.unread(list(sources.values())) if is_whole else []
    if unread:
        raise WeightsError(f"{name_few(unread)} without a place in this architecture")
    return sources


def load(
    checkpoint: Checkpoint,
    destinations: Mapping[str, Destination],
    progress: Progress | None = None,
    *,
    is_whole: bool = True,
) -> None:
    """Fill every destination; a slot receives its matrix in packed form. `is_whole` as for `check`.

    Raises WeightsError or LoadCancelled; the destinations are then unusable. Memory besides the destinations is a few
    pieces per thread; for destinations on a device, one whole parameter per thread.
    """
    sources = check(checkpoint, destinations, is_whole=is_whole)
    progress = progress or Progress()
    work = [pair for name, destination in destinations.items() for pair in _pairs(sources[name], destination)]
    progress.total_bytes = sum(part.size_bytes for source, _ in work for part in source.parts)
    pieces = _Pieces(work)
    num_threads = torch.get_num_threads()
    try:
        with Files() as files:
            threads = [
                threading.Thread(target=_work, args=(files, pieces, progress), name=f"weights-{index}")
                for index in range(min(_MAX_THREADS, (os.cpu_count() or 1) + 1))
            ]
            _run(threads, progress)
    finally:
        torch.set_num_threads(num_threads)  # the loading threads set it to one each
    if pieces.failure is not None:
        raise pieces.failure
    if progress.is_cancelled:
        raise LoadCancelled(f"cancelled after {progress.done_bytes} of {progress.total_bytes} bytes")


def _pairs(source: Source, destination: Destination) -> Iterable[tuple[Source, Whole]]:
    return destination.pairs(source) if isinstance(destination, Part) else ((source, destination),)


class _Pieces:
    """The pieces of a load in file order; none after a failure."""

    def __init__(self, sources: list[tuple[Source, Whole]]) -> None:
        sources.sort(key=lambda item: (str(item[0].parts[0].path), item[0].parts[0].offset))
        self.failure: BaseException | None = None
        self._lock = threading.Lock()
        self._pieces = self._all(sources)

    def take(self) -> tuple[Source, Whole, int, int, int] | None:
        """Return a source, its destination, the piece, and the stored bytes it counts for."""
        with self._lock:
            return None if self.failure is not None else next(self._pieces, None)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self.failure = self.failure or error

    @staticmethod
    def _all(sources: list[tuple[Source, Whole]]) -> Iterator[tuple[Source, Whole, int, int, int]]:
        for source, destination in sources:
            is_at_once = isinstance(destination, PackedSlot) or destination.device.type != "cpu"
            pieces = [(0, source.shape[0])] if is_at_once else list(source.pieces())
            size_bytes = sum(part.size_bytes for part in source.parts)
            end = pieces[-1][1] if pieces else 0
            for first, last in pieces:
                yield source, destination, first, last, size_bytes * last // end - size_bytes * first // end


def _work(files: Files, pieces: _Pieces, progress: Progress) -> None:
    """Load pieces until none are left, one fails, or the load is cancelled. Runs in each thread."""
    torch.set_num_threads(1)  # for this thread; all loading threads together use all cores
    try:
        while not progress.is_cancelled and (piece := pieces.take()) is not None:
            source, destination, first, last, num_bytes = piece
            if isinstance(destination, PackedSlot):
                destination.put(_read_packed(source, files))
            elif destination.device.type != "cpu":
                fill_through_host(source, files, destination)
            else:
                source.fill(files, destination, first, last)
            progress.add(num_bytes)
    except BaseException as error:
        pieces.fail(error)


def fill_through_host(source: Source, files: Files, destination: torch.Tensor) -> None:
    """Load a whole parameter through host memory to a device that cannot be read into directly."""
    room = torch.empty(source.shape, dtype=destination.dtype)
    for first, last in source.pieces():
        source.fill(files, room, first, last)
    destination.copy_(room)


def _read_packed(source: Source, files: Files) -> QuantizedTensor:
    """Read a source that has a packed form."""
    matrix: QuantizedTensor = source.read_quantized(files)  # type: ignore[attr-defined]
    return matrix


def _run(threads: list[threading.Thread], progress: Progress) -> None:
    """Wait for all threads and log the progress of large loads. If interrupted, stop them first."""
    told = time.monotonic()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_TELL_EVERY_S)
                if time.monotonic() - told > _TELL_EVERY_S:
                    told = time.monotonic()
                    done, total = progress.done_bytes, progress.total_bytes
                    logger.info("loading weights", extra={"done_bytes": done, "total_bytes": total})
    except BaseException:
        progress.cancel()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise


def _open_gguf(path: Path) -> Checkpoint:
    from engine.checkpoints.gguf_weights import GgufWeights  # the gguf package is slow to import

    weights = GgufWeights(read_gguf(path))
    return Checkpoint(weights.stored, weights.find, weights.is_idle)
