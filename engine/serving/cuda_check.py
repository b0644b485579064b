"""Check at startup that models can run on a GPU: driver, compute capability, C compiler, attention backend.

Reads NVML, which does not initialize CUDA; imports no torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Mapping
from typing import Any

from engine.config import ATTENTION_BACKENDS, FLOAT8_CAPABILITY
from engine.devices.nvml import visible_gpus
from engine.kernels.kernel_cache import cache_folder, stale_reason
from telemetry.settings import SettingError

MIN_CAPABILITY = (8, 0)
# Attention kernels of other projects, by the name of the setting: the package, and the module that it provides.
_PACKAGES = {
    "cudnn": ("nvidia-cudnn-frontend", "cudnn"),
    "flashinfer": ("flashinfer-python", "flashinfer"),
    "triton": ("triton", "triton"),
}
_COMPILERS = ("gcc", "clang")  # compilers that Triton looks for


def attention_fault(name: str) -> str | None:
    """Return an error message for the name of an attention backend, or None if the name is valid."""
    choices = ", ".join(ATTENTION_BACKENDS)
    if name in ATTENTION_BACKENDS and name != "triton":
        return None
    package, module = _PACKAGES.get(name, ("", ""))
    if not package:
        return f"must be one of {choices}"
    if importlib.util.find_spec(module) is None:
        return f"needs the package {package}, which is not installed"
    return None if name in ATTENTION_BACKENDS else f"{package} is installed, but not supported; use one of {choices}"


def check_cuda(setting: str, nvml: Any = None, environ: Mapping[str, str] = os.environ) -> None:
    """Raise SettingError if models cannot run on the visible GPUs. `setting` is the setting that asks for a GPU, with
    its value; `nvml` is the module `pynvml`."""
    _check_gpus(setting, nvml)
    compiler = environ.get("CC") or next(filter(shutil.which, _COMPILERS), "")
    if not (compiler and shutil.which(compiler)) and not has_cached_launchers(environ):
        found = f" (CC={environ['CC']!r} is not found)" if environ.get("CC") else ""
        raise SettingError(f"{setting} needs a C compiler (install gcc or set CC){found}")


def check_float8(setting: str, nvml: Any = None) -> None:
    """Raise SettingError if the visible GPUs have no 8-bit floats. Parameters as for `check_cuda`."""
    _check_gpus(setting, nvml, FLOAT8_CAPABILITY)


def has_cached_launchers(environ: Mapping[str, str]) -> bool:
    """Return True if Triton's cache has the compiled modules that launch kernels, for this version of Python."""
    folder, names = cache_folder(environ), ("cuda_utils", "__triton_launcher")
    return not stale_reason(folder) and all(any(folder.glob(f"*/{name}*.so")) for name in names)


def _check_gpus(setting: str, nvml: Any, min_capability: tuple[int, int] = MIN_CAPABILITY) -> None:
    if nvml is None:
        if importlib.util.find_spec("pynvml") is None:
            return  # loading a model reports the missing package
        nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        gpus = visible_gpus(nvml)
        for gpu in gpus:
            capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(gpu))
            if capability < min_capability:
                found = f"{nvml.nvmlDeviceGetName(gpu)} has {capability[0]}.{capability[1]}"
                raise SettingError(f"{setting} needs compute capability {'.'.join(map(str, min_capability))} ({found})")
    except nvml.NVMLError as error:
        raise SettingError(f"{setting} needs an NVIDIA driver ({error})") from None
    if not gpus:
        raise SettingError(
            f"{setting} needs a GPU (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r})"
        )
