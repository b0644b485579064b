"""A device that fails as a GPU can, for tests without one. Runs everything on the CPU, like `recorded.py`.

The errors are those of torch: out of memory when a step is launched, CUDA errors 214, 700 and 719 when its results are
waited for, a context that cannot be created, memory that cannot be pinned. Copies on a stream read their memory as late
as a GPU may. `FakeDriver` replaces the module `pynvml`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.devices.recorded import RecordedDevice, RecordedEvent, RecordedPinnedMemory

OUT_OF_MEMORY = "out of memory"
NO_CONTEXT = "no context"
CUDA_ERRORS = {
    "ECC error": (214, "uncorrectable ECC error encountered"),
    "illegal access": (700, "an illegal memory access was encountered"),
    "launch failure": (719, "unspecified launch failure"),
}


def cuda_error(fault: str) -> torch.AcceleratorError:
    """Return the exception that torch raises for one of CUDA_ERRORS."""
    code, text = CUDA_ERRORS[fault]
    error: Any = torch.AcceleratorError(f"CUDA error: {text}\nCUDA kernel errors might be reported at some other call.")
    error.error_code = code
    return error  # type: ignore[no-any-return]


class FakeDevice(RecordedDevice):
    """See `engine.devices.device.Device`. The device has `fault` from the step `at_step` on, counted from 1. It can pin
    `max_pinned_bytes` bytes."""

    def __init__(self, fault: str = "", at_step: int = 1, max_pinned_bytes: int = sys.maxsize) -> None:
        super().__init__()
        self.fault, self.at_step = fault, at_step
        self.max_pinned_bytes = max_pinned_bytes
        self.num_waits = 0
        self.local = threading.local()  # `stream`: the stream that this thread uses

    @property
    def is_failing(self) -> bool:
        return self.num_waits + 1 >= self.at_step

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def stream(self) -> FakeStream:  # type: ignore[override]
        return FakeStream(self)

    def pin(self, num_bytes: int) -> RecordedPinnedMemory:
        if self.num_pinned_bytes + num_bytes > self.max_pinned_bytes:
            raise MemoryError(f"{num_bytes} bytes cannot be pinned: CUDA error 2")
        return super().pin(num_bytes)

    def create_context(self, *_: object) -> None:
        """Fail as the first use of a device does that has fallen off the bus, if that is the fault."""
        if self.fault == NO_CONTEXT:
            raise torch.AcceleratorError("CUDA error: no CUDA-capable device is detected")


class FakeEvent(RecordedEvent):
    """See `engine.devices.device.Event`."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self._device = device
        self._stream: FakeStream | None = None
        self._position = 0

    def record(self) -> None:
        if self._device.fault == OUT_OF_MEMORY and self._device.is_failing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free.")
        self._stream = getattr(self._device.local, "stream", None)
        if self._stream is not None:
            self._position = self._stream.num_queued
        super().record()

    def wait(self) -> None:
        if self._stream is not None:
            self._stream.run_until(self._position)
            return
        if self._device.fault in CUDA_ERRORS and self._device.is_failing:
            raise cuda_error(self._device.fault)
        self._device.num_waits += 1
        super().wait()


class FakeStream:
    """See `engine.devices.device.Stream`. What writes to memory runs when an event behind it is waited for."""

    def __init__(self, device: FakeDevice) -> None:
        self.num_queued = 0
        self._device = device
        self._queue: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        self._device.local.stream = self
        try:
            with _Queueing(self):
                yield
        finally:
            self._device.local.stream = None

    def queue(self, work: Callable[[], object]) -> None:
        with self._lock:
            self._queue.append(work)
            self.num_queued += 1

    def run_until(self, position: int) -> None:
        """Run what was queued before `position`."""
        with self._lock:
            while self._queue and self.num_queued - len(self._queue) < position:
                self._queue.popleft()()


class _Queueing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context in which operators that write to memory are queued on a stream."""

    def __init__(self, stream: FakeStream) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stream = stream

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = [each.name for each in func._schema.arguments if each.alias_info and each.alias_info.is_write]
        if not written:
            return func(*args, **kwargs)
        self._stream.queue(lambda: func(*args, **kwargs))
        outputs = tuple(kwargs[name] for name in written if name in kwargs)  # operators with `out`
        return args[0] if not outputs else outputs if len(outputs) > 1 else outputs[0]


class FakeDriverError(Exception):
    """Stands for `pynvml.NVMLError`."""


@dataclass
class FakeDriver:
    """Stands for the module `pynvml` on a machine with one GPU."""

    capability: tuple[int, int] = (9, 0)
    name: str = "NVIDIA H200"
    is_loaded: bool = True
    num_gpus: int = 1
    NVMLError: Any = FakeDriverError

    def nvmlInit(self) -> None:  # noqa: N802 - pynvml's names
        if not self.is_loaded:
            raise FakeDriverError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.num_gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, _gpu: int) -> str:  # noqa: N802
        return self.name

    def nvmlDeviceGetCudaComputeCapability(self, _gpu: int) -> tuple[int, int]:  # noqa: N802
        return self.capability
