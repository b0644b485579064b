"""Load a checkpoint's weights into a model's parameters.

Headers are checked before any data is read. Then several threads read every tensor directly into its destination, and
convert only values of another type. For a device they read into pinned memory instead (`uploads.py`). Safetensors and
GGUF are supported. Pickles are never loaded, files are never mapped, and no code from a checkpoint is run. Model
families name their parameters; the other modules of this package read the formats.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from engine.checkpoints.alignment import common_alignment
from engine.checkpoints.dense import Dense
from engine.checkpoints.folder import explain_missing_weights, find_safetensors, read_quantization
from engine.checkpoints.gguf_file import GgufError, find_gguf, read_gguf
from engine.checkpoints.quantization import is_unused
from engine.checkpoints.quantized import PackedForm, PackedSlot
from engine.checkpoints.shard_slice import ShardDestination
from engine.checkpoints.stored import REALS, Files, Source, StoredTensor, WeightsError, list_names
from engine.checkpoints.uploads import Uploads
from engine.devices.device import Device
from weight_files.safetensors_header import HeaderError

__all__ = ["Checkpoint", "LoadCancelled", "Progress", "WeightsError", "check", "load", "open_checkpoint"]

logger = logging.getLogger(__name__)

Whole = torch.Tensor | PackedSlot
Destination = Whole | ShardDestination
Piece = tuple[int, Callable[[], None]]

_MAX_THREADS = 8
_MAX_BIAS_BYTES = 1 << 24  # biases larger than this are not checked for being all zeros
_LOG_EVERY_S = 5.0


class LoadCancelled(Exception):
    """The load was cancelled by its caller."""


class Progress:
    """The progress of a load, and the way to cancel it. Thread-safe."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.done_bytes = 0
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Stop the load after the pieces in progress; `load` then raises LoadCancelled."""
        self._cancelled.set()

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self.done_bytes += num_bytes


class Checkpoint:
    """The stored tensors of a model and the parameters they make up. `name in checkpoint` is true for parameters."""

    def __init__(
        self,
        stored: Mapping[str, StoredTensor],
        find: Callable[[str], Source | None],
        is_unused: Callable[[str], bool],
    ) -> None:
        """`find` returns a parameter by name; `is_unused` returns True for a stored tensor that need not be read."""
        self._stored = stored
        self._find = find
        self._is_unused = is_unused
        self._sources: dict[str, Source | None] = {}

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    @property
    def dtype(self) -> torch.dtype:
        """The float type of most bytes, or bfloat16 if most bytes are quantized."""
        sizes: Counter[str] = Counter()
        for tensor in self._stored.values():
            sizes[tensor.dtype] += tensor.size_bytes
        most = max(sizes, key=lambda name: sizes[name], default="F32")
        dtype = REALS.get(most, torch.bfloat16)
        return dtype if dtype in (torch.float32, torch.float16, torch.bfloat16) else torch.bfloat16

    @property
    def common_alignment(self) -> int:
        """The offset within a cache line at which most tensors begin in the files, weighted by size."""
        return common_alignment(self._stored.values())

    def without(self, prefixes: tuple[str, ...]) -> Checkpoint:
        """Return the checkpoint without tensors whose names begin with one of `prefixes`."""
        if not prefixes:
            return self
        stored = {name: tensor for name, tensor in self._stored.items() if not name.startswith(prefixes)}
        return Checkpoint(stored, self._find, self._is_unused)

    def find(self, name: str) -> Source | None:
        """Return the parameter `name` after checking its parts, or None if it is absent. Raises WeightsError."""
        if name not in self._sources:
            source = self._find(name)
            if source is not None:
                source.check()
            self._sources[name] = source
        return self._sources[name]

    def packed_form(self, name: str) -> PackedForm | None:
        """Return how the matrix `name` is packed, or None if a layer cannot compute with it packed.

        Raises WeightsError.
        """
        form = getattr(self.find(name), "packed_form", None)
        if form is None:
            return None
        with Files() as files:
            found: PackedForm | None = form(files)
            return found

    def read_reals(self, name: str) -> torch.Tensor | None:
        """Return a small stored tensor as float32, or None if it is absent. Raises WeightsError."""
        stored = self._stored.get(name)
        if stored is None:
            return None
        if stored.dtype not in REALS:
            raise WeightsError(f"{name} has type {stored.dtype}")
        with Files() as files:
            return files.read_reals(stored)

    def hint(self, name: str) -> str:
        """Return the end of an error message: a stored tensor that resembles the missing parameter `name`, if any."""
        base = name.removesuffix(".weight")
        others = sorted(other for other in self._stored if other.startswith((f"{base}.", f"{name}_")))
        return f"; {others[0]} is stored, but quantization_config does not describe it" if others else ""

    def unread(self, sources: Collection[Source]) -> list[str]:
        """Return the names of stored tensors that no source uses and that may not be ignored, sorted."""
        read = {part.name for source in sources for part in source.parts}
        return sorted(name for name in self._stored.keys() - read if not self._is_harmless(name, read))

    def _is_harmless(self, name: str, read: set[str]) -> bool:
        """Return True for tied heads, recomputed rotary tables, tensors for activations, and biases of zeros."""
        if name.endswith(".rotary_emb.inv_freq") or self._is_unused(name):
            return True
        if name.startswith("lm_head.") and not any(other.startswith("lm_head.") for other in read):
            return True
        base, stored = name.removesuffix(".bias"), self._stored[name]
        is_bias = base != name and f"{base}.qweight" in read
        if not is_bias or stored.dtype not in REALS or stored.size_bytes > _MAX_BIAS_BYTES:
            return False
        with Files() as files:  # GPTQ tools write zero biases for models without biases
            return not files.read_reals(stored).any()


def open_checkpoint(model_dir: Path) -> Checkpoint:
    """Read and check the headers of a model's weights. Raises WeightsError.

    Looks for `model.safetensors`, the shards of its index, a single safetensors file, or a `.gguf` file (which
    `model_dir` may also be).
    """
    try:
        stored = find_safetensors(model_dir)
        if stored is not None:
            scheme = read_quantization(model_dir)
            return Checkpoint(stored, lambda name: scheme.find(name, stored), is_unused)
        path = find_gguf(model_dir)
        if path is not None:
            return _open_gguf(path)
    except (HeaderError, GgufError) as error:
        raise WeightsError(str(error)) from error
    raise WeightsError(explain_missing_weights(model_dir))


def check(
    checkpoint: Checkpoint, destinations: Mapping[str, Destination], *, is_whole: bool = True
) -> dict[str, Source]:
    """Check that every destination has a parameter of its shape, and return the parameters by name.

    With `is_whole` (the destinations are a whole model, not one rank's shard), also check that every stored tensor is
    used. Raises WeightsError naming the first few tensors. Reads no weights, so destinations may be on the meta device.
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
        raise WeightsError(f"{list_names(missing)} missing{checkpoint.hint(missing[0])}")
    unread = checkpoint.unread(list(sources.values())) if is_whole else []
    if unread:
        raise WeightsError(f"{list_names(unread)} not used by this architecture")
    return sources


def load(
    checkpoint: Checkpoint,
    destinations: Mapping[str, Destination],
    progress: Progress | None = None,
    *,
    is_whole: bool = True,
    device: Device | None = None,
) -> dict[str, float]:
    """Fill every destination; a `PackedSlot` receives the packed matrix. `is_whole` is as for `check`. `device` is the
    device of the destinations, if the host does not compute.

    Returns seconds: `weights` in all; and for a device `read` (mean of the threads), `upload` and `weight_check` (both
    on the device, while files are read). Raises WeightsError or LoadCancelled; the destinations must not be used then.
    Besides the destinations, each thread holds a few pieces, or one whole parameter that is expanded for a device.
    """
    started = time.perf_counter()
    sources = check(checkpoint, destinations, is_whole=is_whole)
    progress = progress or Progress()
    work = [pair for name, destination in destinations.items() for pair in _pairs(sources[name], destination)]
    work.sort(key=lambda pair: (str(pair[0].parts[0].path), pair[0].parts[0].offset))
    progress.total_bytes = sum(part.size_bytes for source, _ in work for part in source.parts)
    num_threads = torch.get_num_threads()
    num_readers = min(_MAX_THREADS, (os.cpu_count() or 1) + 1)
    phases: dict[str, float] = {}
    try:
        with ExitStack() as stack:
            files = stack.enter_context(Files())
            uploads = None if device is None else stack.enter_context(Uploads(device, progress.total_bytes))
            pieces = _Pieces(_all_pieces(work, files, uploads))
            executor = stack.enter_context(ThreadPoolExecutor(num_readers, "weights", torch.set_num_threads, (1,)))
            _wait({executor.submit(_read_pieces, pieces, progress) for _ in range(num_readers)}, progress)
            if uploads is not None and not progress.is_cancelled:
                phases = uploads.finish()
    finally:
        torch.set_num_threads(num_threads)  # the readers, one per core, set it to 1
    if progress.is_cancelled:
        raise LoadCancelled(f"cancelled after {progress.done_bytes} of {progress.total_bytes} bytes")
    if phases:
        phases["read"] /= num_readers
    return {"weights": time.perf_counter() - started, **phases}


def _wait(readers: set[Future[None]], progress: Progress) -> None:
    """Wait for the readers and log the progress. If one fails or the wait is interrupted, cancel the others."""
    try:
        while readers:
            done, readers = wait(readers, _LOG_EVERY_S, FIRST_EXCEPTION)
            for reader in done:
                reader.result()
            if readers:
                sizes = {"done_bytes": progress.done_bytes, "total_bytes": progress.total_bytes}
                logger.info("loading weights", extra=sizes)
    except BaseException:
        progress.cancel()
        raise


def _pairs(source: Source, destination: Destination) -> Iterable[tuple[Source, Whole]]:
    return destination.pairs(source) if isinstance(destination, ShardDestination) else ((source, destination),)


class _Pieces:
    """The pieces of a load in file order, each as its stored bytes and the function that reads it. Thread-safe."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._lock = threading.Lock()
        self._pieces = pieces

    def take(self) -> Piece | None:
        """Return the next piece; None at the end."""
        with self._lock:
            return next(self._pieces, None)


def _all_pieces(work: Iterable[tuple[Source, Whole]], files: Files, uploads: Uploads | None) -> Iterator[Piece]:
    for source, destination in work:
        size_bytes = sum(part.size_bytes for part in source.parts)
        if isinstance(destination, PackedSlot):
            yield size_bytes, partial(_read_packed, source, files, destination, uploads)
        elif uploads is None:
            yield from _host_pieces(source, files, destination, size_bytes)
        elif isinstance(source, Dense):
            for piece in uploads.pieces(source, destination):
                yield piece.num_bytes, partial(uploads.put, files, piece)
        else:
            yield size_bytes, partial(uploads.expand, files, source, destination)


def _host_pieces(source: Source, files: Files, destination: torch.Tensor, size_bytes: int) -> Iterator[Piece]:
    pieces = list(source.pieces())
    end = pieces[-1][1] if pieces else 0
    for first, last in pieces:
        num_bytes = size_bytes * last // end - size_bytes * first // end
        yield num_bytes, partial(source.fill, files, destination, first, last)


def _read_packed(source: Source, files: Files, slot: PackedSlot, uploads: Uploads | None) -> None:
    whole = source.read_quantized(files)  # type: ignore[attr-defined]
    slot.put(whole, None if uploads is None else uploads.moved)


def _read_pieces(pieces: _Pieces, progress: Progress) -> None:
    """Read pieces in one thread until none is left or the load is cancelled."""
    while not progress.is_cancelled and (piece := pieces.take()) is not None:
        num_bytes, read = piece
        read()
        progress.add(num_bytes)


def _open_gguf(path: Path) -> Checkpoint:
    from engine.checkpoints.gguf_weights import GgufWeights  # the gguf package is slow to import

    weights = GgufWeights(read_gguf(path))
    return Checkpoint(weights.stored, weights.find, weights.is_unused)
