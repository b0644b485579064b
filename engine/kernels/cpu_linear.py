"""Matrix products on the CPU: the fastest operator, weight layout and precision of this machine.

oneDNN's prepacked linear reads weights at memory speed, the plain operator at half of it. torch exposes it only under
private names, so it is tried once on a small product and not used if it is missing or wrong. A call costs 10 µs more
than the plain one, which matters for small float32 matrices. It compiles a kernel for every number of rows, half a
millisecond each, so rows are padded.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from engine.kernels.interface import Operator

_SMALL_FLOAT32 = 1 << 16  # elements; smaller float32 matrices use the plain operator
_PROBE_ROWS = 16
_PROBE_TURNS = 8
ROW_STEP = 16  # larger row counts are padded to a multiple
_FLOAT32_MARGIN = 0.8  # float32 must be clearly faster, so that the choice does not depend on noise


def bind_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
    """Return the fastest known x [T, C] -> x @ weight.T + bias for this weight [out, C]."""
    is_small = weight.dtype == torch.float32 and weight.numel() < _SMALL_FLOAT32
    if not is_small and has_prepacked_linear(weight.dtype):
        return _prepacked(weight, bias)
    transposed = weight.t()  # [C, out]
    if bias is None:
        return lambda x: torch.mm(x, transposed)
    return lambda x: torch.addmm(bias, x, transposed)


def _prepacked(weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    overload = torch.ops.mkldnn._linear_pointwise.default
    linear = getattr(overload, "_op", overload)  # skips a Python call around each call

    def forward(x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[0]
        if num_rows <= ROW_STEP or num_rows % ROW_STEP == 0:
            return linear(x, packed, bias, "none", [], "")
        padded = functional.pad(x, (0, 0, 0, -num_rows % ROW_STEP))
        return linear(padded, packed, bias, "none", [], "")[:num_rows]

    return forward


@functools.cache
def has_prepacked_linear(dtype: torch.dtype) -> bool:
    """Return True if the prepacked operator exists and is correct for `dtype`."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 32, generator=generator).to(dtype)
    bias = torch.randn(48, generator=generator).to(dtype)
    x = torch.randn(3, 32, generator=generator).to(dtype)
    try:
        with torch.inference_mode():
            result = _prepacked(weight, bias)(x)
    except (AttributeError, RuntimeError, TypeError):
        return False
    expected = functional.linear(x.float(), weight.float(), bias.float())
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    return result.shape == expected.shape and bool(torch.allclose(result.float(), expected, atol=tolerance, rtol=0.02))


def fastest_dtype(
    bind: Callable[[torch.Tensor, torch.Tensor | None], Operator],
    shapes: Sequence[tuple[int, int]],
    budget_s: float = 0.08,
) -> torch.dtype:
    """Return the faster of float32 and bfloat16 for products by `bind` with matrices of these (out, in) shapes.

    The types take turns in one thread, so that other load of the machine does not decide: with several threads, every
    call would wait for a thread that is not running.
    """
    largest = max(shapes, key=lambda shape: shape[0] * shape[1])
    num_out, num_in = min(largest[0], 2048), min(largest[1], 2048)
    dtypes = (torch.bfloat16, torch.float32)
    operators = {dtype: bind(torch.ones(num_out, num_in, dtype=dtype), None) for dtype in dtypes}
    inputs = {dtype: torch.ones(_PROBE_ROWS, num_in, dtype=dtype) for dtype in dtypes}  # [16, C]
    best = dict.fromkeys(dtypes, float("inf"))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(_PROBE_TURNS):
            for dtype in dtypes:
                seconds = seconds_per_call(operators[dtype], inputs[dtype], budget_s / (2 * _PROBE_TURNS))
                best[dtype] = min(best[dtype], seconds)
    finally:
        torch.set_num_threads(num_threads)
    is_float32_better = best[torch.float32] < _FLOAT32_MARGIN * best[torch.bfloat16]
    return torch.float32 if is_float32_better else torch.bfloat16


def seconds_per_call(operator: Operator, x: torch.Tensor, budget_s: float) -> float:
    """Return the shortest of the calls that fit in the budget, of at least two."""
    best, deadline = float("inf"), time.perf_counter() + budget_s
    with torch.inference_mode():
        operator(x)
        while True:
            start = time.perf_counter()
            operator(x)
            end = time.perf_counter()
            best = min(best, end - start)
            if end > deadline:
                return best
