"""Device: what a runner needs of a GPU beside tensors: events, streams, pinned memory, graphs.

`cuda.py` implements it for CUDA, `recorded.py` for tests without a GPU. Knows no models and no steps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import torch

Result = TypeVar("Result")


class Event(Protocol):
    """A point in the device's queue of work."""

    def record(self) -> None:
        """Put the event behind all work queued so far."""

    def wait(self) -> None:
        """Sleep until the device has reached the event."""

    def us_since(self, earlier: Event) -> float:
        """Return the device's microseconds between two events that it has reached."""


class Stream(Protocol):
    """A queue of work beside the device's default one. Begins after all work queued before it was created."""

    def use(self) -> AbstractContextManager[object]:
        """Return a context in which the work and the events of this thread go to the stream."""


class PinnedMemory(Protocol):
    """Host memory that the device reads and writes without waiting for the host."""

    tensor: torch.Tensor  # uint8 [size]

    def release(self) -> None:
        """Return the memory to the operating system. No copy may use it any more, and nobody the tensor."""


class Graph(Protocol):
    """A captured piece of work on fixed memory."""

    def replay(self) -> None:
        """Queue the work once more. Reads and writes the same memory as when it was captured."""


class Device(Protocol):
    """One device. Everything that is queued on one stream runs in order."""

    torch_device: torch.device

    def event(self) -> Event: ...

    def stream(self) -> Stream: ...

    def pin(self, num_bytes: int) -> PinnedMemory:
        """Allocate host memory in pages of its own. Raises MemoryError if that much cannot be pinned."""

    def pinned(self, num_ints: int) -> torch.Tensor:
        """Return an int32 buffer on the host from which uploads run asynchronously."""

    def capture(self, run: Callable[[], Result]) -> tuple[Graph, Result]:
        """Capture the work that `run` queues. Return the graph, and `run`'s result, whose tensors each replay writes.

        All graphs share their intermediate memory: a result is valid until the next replay of any graph.
        """
