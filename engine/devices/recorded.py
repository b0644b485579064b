"""`engine.devices.device.Device` on a CPU, for tests of captured graphs without a GPU.

`capture` records every operator that `run` calls and the memory of its operands, and restores the memory that existed
before: as on a GPU, capturing changes nothing. A replay calls the same operators on the same memory, and nothing else:
values that Python computed while capturing stay as they were. An operator that reads a tensor back to the host cannot
be captured and raises CaptureError.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from engine.devices.device import Event, Result

# Operators that copy a value from the device to the host.
_READS_BACK = {"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::equal", "aten::is_nonzero"}


class CaptureError(Exception):
    """The captured work depends on a value that only the device knows."""


class RecordedEvent:
    """See `engine.devices.device.Event`. Work on the CPU has finished when it was queued."""

    def __init__(self) -> None:
        self._at_s = 0.0

    def record(self) -> None:
        self._at_s = time.perf_counter()

    def wait(self) -> None:
        """Return at once."""

    def us_since(self, earlier: Event) -> float:
        assert isinstance(earlier, RecordedEvent)
        return (self._at_s - earlier._at_s) * 1e6


@dataclass(frozen=True, eq=False)
class _Call:
    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operators and appends them to `calls`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []
        # By address: memory that has changed, and its old content.
        self._saved: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def save(self, tensors: list[torch.Tensor]) -> None:
        """Remember the content of memory that is about to change."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._saved:
                self._saved[storage.data_ptr()] = storage, storage.clone()  # type: ignore[no-untyped-call]

    def restore(self) -> None:
        for storage, content in self._saved.values():
            storage.copy_(content)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().partition(".")[0] in _READS_BACK:
            raise CaptureError(f"{func.name()} reads a value back from the device")
        if func._schema.is_mutable:
            self.save(_tensors((args, kwargs)))
        result = func(*args, **(kwargs or {}))
        self.calls.append(_Call(func, args, kwargs or {}, result))
        return result


_active: list[_Recorder] = []


def as_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` as one launch of a graph: a replay calls the function again and none of its operators.

    For functions in plain torch that replace a kernel. They may read the values of their arguments, as kernels do.
    """

    @functools.wraps(function)
    def launch(*args: Any, **kwargs: Any) -> Any:
        if not _active:
            return function(*args, **kwargs)
        with _disable_current_modes():
            _active[-1].save(_tensors((args, kwargs)))
            result = function(*args, **kwargs)
        _active[-1].calls.append(_Call(function, args, kwargs, result))
        return result

    return launch


def _tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors in nested containers and dataclasses."""
    found: list[torch.Tensor] = []
    for value in tree_leaves(values):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif is_dataclass(value):
            found += _tensors([getattr(value, field.name) for field in fields(value)])
    return found


class RecordedGraph:
    """See `engine.devices.device.Graph`."""

    def __init__(self, calls: list[_Call]) -> None:
        self._calls = calls

    def replay(self) -> None:
        for call in self._calls:
            found = call.operator(*call.args, **call.kwargs)
            for target, source in zip(_tensors(call.result), _tensors(found), strict=True):
                if target.data_ptr() != source.data_ptr():
                    target.copy_(source)


class RecordedStream:
    """See `engine.devices.device.Stream`. Work is done when it is queued."""

    def use(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()


class RecordedPinnedMemory:
    """See `engine.devices.device.PinnedMemory`."""

    def __init__(self, device: RecordedDevice, num_bytes: int) -> None:
        self.tensor = torch.empty(num_bytes, dtype=torch.uint8)
        self._device = device
        device.num_pinned_bytes += num_bytes

    def release(self) -> None:
        self._device.num_pinned_bytes -= len(self.tensor)
        self.tensor = torch.empty(0, dtype=torch.uint8)


class RecordedDevice:
    """See `engine.devices.device.Device`. Counts captures of graphs and the bytes that `pin` has allocated."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.num_captures = 0
        self.num_pinned_bytes = 0

    def event(self) -> RecordedEvent:
        return RecordedEvent()

    def stream(self) -> RecordedStream:
        return RecordedStream()

    def pin(self, num_bytes: int) -> RecordedPinnedMemory:
        return RecordedPinnedMemory(self, num_bytes)

    def pinned(self, num_ints: int) -> torch.Tensor:
        return torch.zeros(num_ints, dtype=torch.int32)

    def capture(self, run: Callable[[], Result]) -> tuple[RecordedGraph, Result]:
        recorder = _Recorder()
        _active.append(recorder)
        try:
            with recorder:
                result = run()
        finally:
            _active.pop()
            recorder.restore()
        self.num_captures += 1
        return RecordedGraph(recorder.calls), result
