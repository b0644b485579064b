"""Low-rank adapters of many tokens in C++: one call a map, one pass over each token's own matrices.

A call is bound to who reads what, which stays the same from step to step, and gets addresses alone each time.
"""

from __future__ import annotations

import ctypes

import torch

from engine.kernels.interface import AddLowRank, LowRank
from engine.kernels.native.library import RowSumsCall

_FUNCTIONS = {torch.float32: "hearth_sum_rows_f32", torch.bfloat16: "hearth_sum_rows_bf16"}


def bind_low_rank(library: ctypes.CDLL, maps: LowRank) -> AddLowRank | None:
    """See `engine.kernels.interface.LowRank`."""
    inputs = maps.inputs
    if inputs.dtype not in _FUNCTIONS:
        return None
    function, size = getattr(library, _FUNCTIONS[inputs.dtype]), inputs.dtype.itemsize
    num_tokens, num_hidden = len(maps.slots), inputs.shape[1]
    hidden = torch.empty(num_tokens, num_hidden, dtype=inputs.dtype)  # [n, P r]
    slots = maps.slots.data_ptr()
    tokens = None if maps.tokens is None else maps.tokens.data_ptr()
    calls = (RowSumsCall * (1 + len(maps.runs)))()
    calls[0] = RowSumsCall(
        table=inputs.data_ptr(), slots=slots, sources=tokens, out=hidden.data_ptr(), out_stride=num_hidden,
        num_tokens=num_tokens, num_rows=maps.num_in, bag=maps.num_in, width=num_hidden,
    )  # fmt: skip
    for number, run in enumerate(maps.runs, 1):
        calls[number] = RowSumsCall(
            table=run.table.data_ptr(), slots=slots, targets=tokens, weights=hidden.data_ptr() + run.first * size,
            weights_stride=num_hidden, num_tokens=num_tokens, num_rows=run.num_parts * maps.rank, bag=maps.rank,
            width=run.table.shape[1], is_added=True,
        )  # fmt: skip
    first, *others = calls
    columns = [(call, run.column * size) for call, run in zip(others, maps.runs, strict=True)]
    num_calls, address = len(calls), ctypes.addressof(calls)

    def add(
        x: torch.Tensor, y: torch.Tensor, _kept: tuple[LowRank, torch.Tensor, object] = (maps, hidden, calls)
    ) -> None:
        first.weights, first.weights_stride = x.data_ptr(), x.stride(0)
        out, stride = y.data_ptr(), y.stride(0)
        for call, offset in columns:
            call.out, call.out_stride = out + offset, stride
        function(address, num_calls)

    return add
