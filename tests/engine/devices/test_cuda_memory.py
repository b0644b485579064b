"""The calls of CUDA's driver: their order and arguments, and what is undone if one fails. `FakeBindings` stands for the
module `cuda.bindings.driver` and checks what CUDA's documentation of the calls demands."""

from __future__ import annotations

import enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.devices.cuda_memory import CudaMemory, find_cuda_memory
from engine.devices.virtual_memory import NoDeviceMemory

GRANULE = 2 << 20


class Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2


class FakeBindings:
    """Driver calls on bookkeeping alone. `failing` maps names of calls to their error."""

    CUresult = Result
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED="pinned")
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE="device")
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE="read and write")
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED="recommended")

    def __init__(self) -> None:
        self.failing: dict[str, Result] = {}
        self.handles: dict[int, int] = {}  # handle -> size
        self.mapped: dict[int, tuple[int, int]] = {}  # address -> size and handle
        self.accessible: set[int] = set()

    @staticmethod
    def CUmemAllocationProp() -> Any:  # noqa: N802 - the names of CUDA
        return SimpleNamespace(location=SimpleNamespace())

    @staticmethod
    def CUmemAccessDesc() -> Any:  # noqa: N802
        return SimpleNamespace()

    def cuMemGetAllocationGranularity(self, properties: Any, option: str) -> Any:  # noqa: N802
        assert (properties.type, properties.location.type, properties.location.id) == ("pinned", "device", 1)
        return self._result("cuMemGetAllocationGranularity", GRANULE)

    def cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> Any:  # noqa: N802
        assert (size % GRANULE, alignment, address, flags) == (0, 0, 0, 0)
        return self._result("cuMemAddressReserve", 1 << 40)

    def cuMemCreate(self, size: int, properties: Any, flags: int) -> Any:  # noqa: N802
        assert (size % GRANULE, flags) == (0, 0)
        handle = len(self.handles) + 100
        if "cuMemCreate" not in self.failing:
            self.handles[handle] = size
        return self._result("cuMemCreate", handle)

    def cuMemMap(self, address: int, size: int, offset: int, handle: int, flags: int) -> Any:  # noqa: N802
        assert (self.handles[handle], offset, flags) == (size, 0, 0)
        if "cuMemMap" not in self.failing:
            self.mapped[address] = size, handle
        return self._result("cuMemMap")

    def cuMemSetAccess(self, address: int, size: int, access: list[Any], count: int) -> Any:  # noqa: N802
        assert self.mapped[address][0] == size
        assert (access[0].location.id, access[0].flags, count) == (1, "read and write", 1)
        self.accessible.add(address)
        return self._result("cuMemSetAccess")

    def cuMemUnmap(self, address: int, size: int) -> Any:  # noqa: N802
        assert self.mapped.pop(address)[0] == size, "a part of a mapping cannot be unmapped"
        self.accessible.discard(address)
        return self._result("cuMemUnmap")

    def cuMemRelease(self, handle: int) -> Any:  # noqa: N802
        del self.handles[handle]
        return self._result("cuMemRelease")

    def cuMemHostRegister(self, address: int, size: int, flags: int) -> Any:  # noqa: N802
        assert address
        assert (size, flags) == (100, 1)
        return self._result("cuMemHostRegister")

    def _result(self, name: str, *values: Any) -> tuple[Any, ...]:
        code = self.failing.get(name, Result.CUDA_SUCCESS)
        return (code, *(None if code else value for value in values))


@pytest.fixture
def bindings() -> FakeBindings:
    return FakeBindings()


@pytest.fixture
def memory(bindings: FakeBindings) -> CudaMemory:
    return CudaMemory(bindings, torch.device("cuda", 1))


def test_memory_is_mapped_with_access_and_unmapped_as_a_whole(bindings: FakeBindings, memory: CudaMemory) -> None:
    address = memory.reserve(8 * GRANULE)
    handles = [memory.map(address + first * GRANULE, 4 * GRANULE) for first in (0, 4)]
    assert bindings.accessible == {address, address + 4 * GRANULE}
    for first, handle in zip((0, 4), handles, strict=True):
        memory.unmap(address + first * GRANULE, 4 * GRANULE, handle)
    assert (bindings.mapped, bindings.handles) == ({}, {})


@pytest.mark.parametrize("name", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_a_failed_call_leaves_nothing_mapped(bindings: FakeBindings, memory: CudaMemory, name: str) -> None:
    address = memory.reserve(GRANULE)
    for code, kind in ((Result.CUDA_ERROR_OUT_OF_MEMORY, NoDeviceMemory), (Result(1), RuntimeError)):
        bindings.failing = {name: code}
        with pytest.raises(kind):
            memory.map(address, GRANULE)
        assert (bindings.mapped, bindings.handles) == ({}, {})
    bindings.failing = {}
    memory.map(address, GRANULE)


def test_host_memory_that_cannot_be_pinned_is_no_error(bindings: FakeBindings, memory: CudaMemory) -> None:
    host = torch.zeros(100, dtype=torch.uint8)
    assert memory.pin(host)
    bindings.failing = {"cuMemHostRegister": Result.CUDA_ERROR_OUT_OF_MEMORY}
    assert not memory.pin(host)


def test_an_error_names_the_call(bindings: FakeBindings, memory: CudaMemory) -> None:
    bindings.failing = {"cuMemAddressReserve": Result.CUDA_ERROR_INVALID_VALUE}
    with pytest.raises(RuntimeError, match=r"^cuMemAddressReserve: CUDA error 1: CUDA_ERROR_INVALID_VALUE$"):
        memory.reserve(GRANULE)


def test_without_the_package_models_cannot_sleep(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    assert find_cuda_memory(torch.device("cuda", 0)) is None
    assert caplog.messages == ["models cannot sleep: the package cuda-bindings is not installed"]
