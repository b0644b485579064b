"""`engine.devices.virtual_memory.VirtualMemory` by the virtual memory management of CUDA's driver.

Needs the package `cuda-bindings`, which torch installs with CUDA. CUDA's documentation of the calls: "Virtual
Memory Management" in the driver API.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from engine.devices.virtual_memory import NoDeviceMemory

logger = logging.getLogger(__name__)

_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: pinned for all contexts


def find_cuda_memory(device: torch.device) -> CudaMemory | None:
    """Return the virtual memory of a GPU whose context exists; None, with a warning, if it is not supported."""
    try:
        from cuda.bindings import driver
    except ImportError:
        logger.warning("models cannot sleep: the package cuda-bindings is not installed")
        return None
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    if not _checked(driver, driver.cuDeviceGetAttribute(attribute, device.index)):
        logger.warning(
            "models cannot sleep: the device has no virtual memory management", extra={"device": str(device)}
        )
        return None
    return CudaMemory(driver, device)


class CudaMemory:
    """See `engine.devices.virtual_memory.VirtualMemory`. `driver` is the module `cuda.bindings.driver`."""

    def __init__(self, driver: Any, device: torch.device) -> None:
        self._driver, self._device = driver, device
        properties = self._properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED  # "pinned" to the device
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = device.index
        access = self._access = driver.CUmemAccessDesc()
        access.location = properties.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        option = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        self.granule = int(self._call("cuMemGetAllocationGranularity", properties, option))

    def reserve(self, size: int) -> int:
        return int(self._call("cuMemAddressReserve", size, 0, 0, 0))

    def map(self, address: int, size: int) -> int:
        handle = self._call("cuMemCreate", size, self._properties, 0)
        try:
            self._call("cuMemMap", address, size, 0, handle, 0)
        except BaseException:
            self._call("cuMemRelease", handle)
            raise
        try:
            self._call("cuMemSetAccess", address, size, [self._access], 1)
        except BaseException:
            self.unmap(address, size, handle)
            raise
        return handle  # type: ignore[no-any-return]

    def unmap(self, address: int, size: int, handle: int) -> None:
        self._call("cuMemUnmap", address, size)
        self._call("cuMemRelease", handle)

    def view(self, address: int, size: int) -> torch.Tensor:
        return torch.as_tensor(_Bytes(address, size), device=self._device)

    def pin(self, host: torch.Tensor) -> bool:
        # Not `cudaHostRegister`: torch would report its error again at the next kernel launch.
        (code,) = self._driver.cuMemHostRegister(host.data_ptr(), host.nbytes, _PORTABLE)
        return bool(code == self._driver.CUresult.CUDA_SUCCESS)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def trim(self) -> int:
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device)

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver. Raises NoDeviceMemory, or RuntimeError naming the function and the error."""
        try:
            return _checked(self._driver, getattr(self._driver, name)(*arguments))
        except RuntimeError as error:
            raise RuntimeError(f"{name}: {error}") from error


def _checked(driver: Any, result: tuple[Any, ...]) -> Any:
    """Return the value after the error code in the result of a driver call."""
    code, *values = result
    if code == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise NoDeviceMemory("out of memory")
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA error {int(code)}: {code.name}")
    return values[0] if values else None


class _Bytes:
    """Memory on a GPU as other libraries pass it to torch, which neither copies nor frees it."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 2}
