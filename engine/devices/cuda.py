"""`engine.devices.device.Device` on CUDA. Events block instead of spinning, so that a waiting process uses no core."""

from __future__ import annotations

import contextlib
import logging
import mmap
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from engine.devices.device import Event, Graph, Result

logger = logging.getLogger(__name__)


class CudaEvent:
    """See `engine.devices.device.Event`. `torch.Event` ignores `blocking` on CUDA, `torch.cuda.Event` does not."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]

    def record(self) -> None:
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()

    def us_since(self, earlier: Event) -> float:
        assert isinstance(earlier, CudaEvent)
        return 1000 * float(earlier._event.elapsed_time(self._event))


class CudaStream:
    """See `engine.devices.device.Stream`."""

    def __init__(self, torch_device: torch.device) -> None:
        self._stream = torch.cuda.Stream(torch_device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(torch_device))

    def use(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)


class CudaPinnedMemory:
    """See `engine.devices.device.PinnedMemory`. Memory of the operating system, because torch's allocator keeps what it
    has pinned."""

    def __init__(self, torch_device: torch.device, num_bytes: int) -> None:
        """Raises MemoryError."""
        try:
            memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"{num_bytes} bytes cannot be allocated: {error.strerror}") from None
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)  # fewer pages to pin
        self.tensor = torch.frombuffer(memory, dtype=torch.uint8)
        code = int(torch.cuda.cudart().cudaHostRegister(self.tensor.data_ptr(), num_bytes, 0))  # type: ignore[no-untyped-call]
        if code:
            with contextlib.suppress(RuntimeError):  # the next launch reports the error of this call, and clears it
                torch.zeros(1, device=torch_device)
            raise MemoryError(f"{num_bytes} bytes cannot be pinned: CUDA error {code}")

    def release(self) -> None:
        torch.cuda.cudart().cudaHostUnregister(self.tensor.data_ptr())  # type: ignore[no-untyped-call]
        self.tensor = torch.empty(0, dtype=torch.uint8)


class CudaDevice:
    """See `engine.devices.device.Device`."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self._pool = torch.cuda.graph_pool_handle()

    def event(self) -> CudaEvent:
        return CudaEvent()

    def stream(self) -> CudaStream:
        return CudaStream(self.torch_device)

    def pin(self, num_bytes: int) -> CudaPinnedMemory:
        return CudaPinnedMemory(self.torch_device, num_bytes)

    def pinned(self, num_ints: int) -> torch.Tensor:
        """Fall back to pageable memory if none can be pinned: uploads then wait for their copy."""
        try:
            return torch.zeros(num_ints, dtype=torch.int32, pin_memory=True)
        except RuntimeError:
            logger.warning("memory cannot be pinned", extra={"size_bytes": 4 * num_ints})
            return torch.zeros(num_ints, dtype=torch.int32)

    def capture(self, run: Callable[[], Result]) -> tuple[Graph, Result]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = run()
        return graph, result
