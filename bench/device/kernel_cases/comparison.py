"""Comparison of a kernel's results with its reference's, and buffers for timing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from engine.kernels.interface import Float8Rows

# Name, launch, bytes moved, floating point operations.
Case = tuple[str, Callable[[], object], int, int]

_L2_BYTES = 64 << 20  # more than the cache of an H100 or H200

T = TypeVar("T")


def product_types(device: torch.device) -> dict[str, torch.dtype]:
    """Return the types of matrix products to check, by name.

    Triton's interpreter multiplies no bfloat16. On a device, float32 products take long to compile and are not checked.
    """
    if device.type == "cuda":
        return {"bfloat16": torch.bfloat16}
    return {"float32": torch.float32, "float16": torch.float16}


def largest_error(found: torch.Tensor | Float8Rows, expected: torch.Tensor | Float8Rows) -> float:
    """Return the largest relative error of any row [T, …], by Euclidean norm; infinite if a result is not finite."""
    first, second = _exact(found), _exact(expected)
    assert first.shape == second.shape
    difference = (first - second).flatten(1).norm(dim=1)
    errors = difference / second.flatten(1).norm(dim=1).clamp(min=1e-6)
    return float(errors.nan_to_num(nan=float("inf")).max())


def bit_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return 0 if both are bit-equal, otherwise infinity."""
    return 0.0 if torch.equal(found, expected) else float("inf")


def batch_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the `bit_error` of a row's results in two batches, which must not differ on a device.

    On a CPU, return the largest relative error: Triton's interpreter multiplies with NumPy, whose sums depend on the
    place of a row in its matrix on some CPUs.
    """
    return (bit_error if found.is_cuda else largest_error)(found, expected)


def rotating(make: Callable[[], T], num_bytes: int) -> Iterator[T]:
    """Yield operands of `num_bytes` each in turn, endlessly, from more memory than the cache holds."""
    return itertools.cycle([make() for _ in range(max(2, _L2_BYTES // num_bytes + 1))])


def on_next(launch: Callable[[T], object], operands: Iterator[T]) -> Callable[[], object]:
    """Return a launch that takes the next operands each time."""
    return lambda: launch(next(operands))


def _exact(x: torch.Tensor | Float8Rows) -> torch.Tensor:
    return x.expand(torch.float32) if isinstance(x, Float8Rows) else x.float()
