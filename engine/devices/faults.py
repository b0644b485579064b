"""Faults of a device: which errors of torch they are, what is logged about them, and a device that is lost.

After a fault the state of the device is unknown, so that the process ends. A device that cannot create a context any
more is lost until an operator has repaired it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import torch

logger = logging.getLogger(__name__)

LOST_EXIT_CODE = 70  # exit code of a follower rank that cannot create a context
# CUDA's error codes, with the text by which torch names them if it does not pass the code on.
_TEXTS = {
    214: "uncorrectable ECC error",
    700: "illegal memory access",
    719: "unspecified launch failure",
}


class DeviceLost(Exception):
    """A device cannot create a context. The message names device and error."""


def describe_fault(error: BaseException) -> str | None:
    """Return a line about an error of a device, or None for other errors. Contains nothing of a request."""
    text = (str(error).splitlines() or [""])[0][:300]
    if isinstance(error, torch.OutOfMemoryError):
        return f"out of memory: {text}"
    if not isinstance(error, RuntimeError) or not (isinstance(error, torch.AcceleratorError) or "CUDA error" in text):
        return None
    code = getattr(error, "error_code", None)
    if code is None:
        code = next((known for known, phrase in _TEXTS.items() if phrase in text), None)
    return text if code is None else f"CUDA error {code}: {text.removeprefix('CUDA error: ')}"


@contextlib.contextmanager
def log_faults(device: str, step: Callable[[], int]) -> Iterator[None]:
    """Log an error of a device with the number of the step that it occurred in, and raise it again."""
    try:
        yield
    except RuntimeError as error:
        fault = describe_fault(error)
        if fault is not None:
            logger.critical("device failed", extra={"device": device, "error": fault, "step": step()})
        raise
