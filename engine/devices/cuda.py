"""`engine.devices.device.Device` on CUDA. Events block instead of spinning, so that a waiting process uses no core."""

from __future__ import annotations

import logging
from collections.abc import Callable

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


class CudaDevice:
    """See `engine.devices.device.Device`."""

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self._pool = torch.cuda.graph_pool_handle()

    def event(self) -> CudaEvent:
        return CudaEvent()

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
