"""Sums of rows of adapters' tables in C++: one pass over each token's own rows, where torch's operator takes several.

A call is bound to who reads what, which stays the same from step to step, and gets addresses alone each time.
"""

from __future__ import annotations

import ctypes

import torch

from engine.kernels.interface import AddRows, RowSums
from engine.kernels.native.library import RowSumsCall

_FUNCTIONS = {torch.float32: "hearth_sum_rows_f32", torch.bfloat16: "hearth_sum_rows_bf16"}


def bind_row_sums(library: ctypes.CDLL, sums: RowSums) -> AddRows | None:
    """See `engine.kernels.interface.RowSums`."""
    table = sums.table
    if table.dtype not in _FUNCTIONS:
        return None
    function, size = getattr(library, _FUNCTIONS[table.dtype]), table.dtype.itemsize
    call = RowSumsCall(
        table=table.data_ptr(),
        slots=sums.slots.data_ptr(),
        sources=None if sums.sources is None else sums.sources.data_ptr(),
        targets=None if sums.targets is None else sums.targets.data_ptr(),
        num_tokens=len(sums.slots),
        num_rows=sums.num_rows,
        bag=sums.bag,
        width=table.shape[1],
    )
    reference = ctypes.byref(call)

    def add_rows(
        weights: torch.Tensor, out: torch.Tensor, first: int, column: int, is_added: bool, _kept: RowSums = sums
    ) -> None:
        call.weights, call.weights_stride = weights.data_ptr() + first * size, weights.stride(0)
        call.out, call.out_stride = out.data_ptr() + column * size, out.stride(0)
        call.is_added = is_added
        function(reference)

    return add_rows
