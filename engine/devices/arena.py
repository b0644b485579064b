"""Arena: the memory of a model's weights and KV cache, which a sleeping model gives back and gets again when it wakes.

`virtual_arena.py` implements it for GPUs: addresses stay the same while a model sleeps, so that its graphs stay valid.
`host_arena.py` implements it for CPUs. `FixedArena` is one allocation by torch that cannot be given back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from torch.overrides import TorchFunctionMode


class ArenaError(Exception):
    """An arena could not be put to sleep or woken and is in the same state as before. The message has the sizes."""


class SleepSizes(NamedTuple):
    """Memory of a sleeping model in bytes: on the host for its weights, and what stays allocated on the device."""

    host_bytes: int
    device_bytes: int


class Arena(Protocol):
    """The memory of one model. `can_sleep` is False if memory cannot be given back."""

    can_sleep: bool

    def adopt(self, tensors: Sequence[torch.Tensor]) -> None:
        """Move the memory of a model's tensors into the arena; the tensors are changed in place. To be called once, in
        inference mode, before any address is used."""

    def kv_memory(self) -> AbstractContextManager[object]:
        """Return a context in which `torch.empty` allocates the KV cache in the arena."""
        ...

    def sleep(self, snapshot: str, /) -> SleepSizes:
        """Give the memory back. Weights are kept in the memory file `snapshot`, and the KV cache is lost. The device
        must have finished all work. Raises ArenaError; nothing has changed then."""
        ...

    def wake(self) -> int:
        """Get the memory again, at the same addresses and with the same weights. Return the bytes of host memory that
        are kept for the next sleep. Raises ArenaError if the device has too little memory; the arena then stays asleep.
        """
        ...


class FixedArena:
    """See `Arena`. Memory stays where torch allocates it."""

    can_sleep = False

    def adopt(self, tensors: Sequence[torch.Tensor]) -> None:
        """Leave the tensors where they are."""

    def kv_memory(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def sleep(self, _snapshot: str, /) -> SleepSizes:
        raise ArenaError("the memory of this model cannot be given back")

    def wake(self) -> int:
        raise ArenaError("the model is not asleep")


class PlacedAllocation(TorchFunctionMode):
    """Context in which tensors from `torch.empty` use the memory that `allocate` returns for a number of bytes."""

    def __init__(self, allocate: Callable[[int], torch.Tensor]) -> None:
        super().__init__()
        self._allocate = allocate

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is not torch.empty:
            return function(*args, **(kwargs or {}))
        empty = torch.empty(*args, **{**(kwargs or {}), "device": "meta"})
        return self._allocate(empty.nbytes).view(empty.dtype).view(empty.shape)
