"""Load a checkpoint's weights into a model's parameters.

Headers are checked before any data is read. Then several threads read every tensor directly into its destination, and
convert only values of another type. Safetensors and GGUF are supported. Pickles are never loaded, files are never
mapped, and no code from a checkpoint is run. Model families name their parameters; the other modules of this package
read the formats.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch

from engine.checkpoints.alignment import common_alignment
from engine.checkpoints.folder import explain_missing_weights, find_safetensors, read_quantization
from engine.checkpoints.gguf_file import GgufError, find_gguf, read_gguf
from engine.checkpoints.quantization import is_unused
from engine.checkpoints.quantized import PackedForm, PackedSlot
from engine.checkpoints.shard_slice import ShardDestination
from engine.checkpoints.stored import REALS, Files, Source, StoredTensor, WeightsError, list_names
from weight_files.safetensors_header import HeaderError

__all__ = ["Checkpoint", "LoadCancelled", "Progress", "WeightsError", "check", "load", "open_checkpoint"]

logger = logging.getLogger(__name__)

Whole = torch.Tensor | PackedSlot
Destination = Whole | ShardDestination

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
) -> None:
    """Fill every destination; a `PackedSlot` receives the packed matrix. `is_whole` is as for `check`.

    Raises WeightsError or LoadCancelled; the destinations must not be used then. Besides the destinations, each thread
    holds a few pieces, or one whole parameter for destinations on a device.
    """
    sources = check(checkpoint, destinations, is_whole=is_whole)
    progress = progress or Progress()
    work = [pair for name, destination in destinations.items() for pair in _pairs(sources[name], destination)]
    work.sort(key=lambda pair: (str(pair[0].parts[0].path), pair[0].parts[0].offset))
    progress.total_bytes = sum(part.size_bytes for source, _ in work for part in source.parts)
    pieces, num_threads = _Pieces(work), torch.get_num_threads()
    num_readers = min(_MAX_THREADS, (os.cpu_count() or 1) + 1)
    try:
        with Files() as files, ThreadPoolExecutor(num_readers, "weights", torch.set_num_threads, (1,)) as executor:
            _wait({executor.submit(_read_pieces, files, pieces, progress) for _ in range(num_readers)}, progress)
    finally:
        torch.set_num_threads(num_threads)  # the readers, one per core, set it to 1
    if progress.is_cancelled:
        raise LoadCancelled(f"cancelled after {progress.done_bytes} of {progress.total_bytes} bytes")


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
    """The pieces of a load in file order. Thread-safe."""

    def __init__(self, work: Iterable[tuple[Source, Whole]]) -> None:
        self._lock = threading.Lock()
        self._pieces = self._all(work)

    def take(self) -> tuple[Source, Whole, int, int, int] | None:
        """Return a source, its destination, the range of the piece, and its stored bytes; None at the end."""
        with self._lock:
            return next(self._pieces, None)

    @staticmethod
    def _all(work: Iterable[tuple[Source, Whole]]) -> Iterator[tuple[Source, Whole, int, int, int]]:
        for source, destination in work:
            is_at_once = isinstance(destination, PackedSlot) or destination.device.type != "cpu"
            pieces = [(0, source.shape[0])] if is_at_once else list(source.pieces())
            size_bytes = sum(part.size_bytes for part in source.parts)
            end = pieces[-1][1] if pieces else 0
            for first, last in pieces:
                yield source, destination, first, last, size_bytes * last // end - size_bytes * first // end


def _read_pieces(files: Files, pieces: _Pieces, progress: Progress) -> None:
    """Read pieces in one thread until none is left or the load is cancelled."""
    while not progress.is_cancelled and (piece := pieces.take()) is not None:
        source, destination, first, last, num_bytes = piece
        if isinstance(destination, PackedSlot):
            destination.put(source.read_quantized(files))  # type: ignore[attr-defined]
        elif destination.device.type != "cpu":
            fill_through_host(source, files, destination)
        else:
            source.fill(files, destination, first, last)
        progress.add(num_bytes)


def fill_through_host(source: Source, files: Files, destination: torch.Tensor) -> None:
    """Fill a destination on a device through a host buffer of the parameter's size."""
    buffer = torch.empty(source.shape, dtype=destination.dtype)
    for first, last in source.pieces():
        source.fill(files, buffer, first, last)
    destination.copy_(buffer)


def _open_gguf(path: Path) -> Checkpoint:
    from engine.checkpoints.gguf_weights import GgufWeights  # the gguf package is slow to import

    weights = GgufWeights(read_gguf(path))
    return Checkpoint(weights.stored, weights.find, weights.is_unused)
