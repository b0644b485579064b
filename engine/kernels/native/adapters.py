"""LoRA adapters of many tokens in C++: one call per linear map, in which each token reads its own matrices
sequentially.

A call is bound to the tokens' adapters, which stay the same from step to step; only addresses are passed each time.
"""

from __future__ import annotations

import ctypes

import torch

from engine.arrays import ceil_div
from engine.kernels.interface import AddLowRank, LowRankShape, LowRankTokens
from engine.kernels.native.library import LowRankCall

_FUNCTIONS = {torch.float32: "hearth_add_low_rank_f32", torch.bfloat16: "hearth_add_low_rank_bf16"}
_LANES = 16  # outputs of a block, as in adapters.cpp
_UNIT_BYTES = 4  # bytes of the inputs processed in one instruction


class NativeLowRank:
    """See `engine.kernels.interface.LowRank`. With units of U inputs: A as [C / U, P r, U], C filled up to whole units,
    then each part's B in blocks of 16 outputs, [r / U, 16, U]; its last block may have fewer."""

    def __init__(self, library: ctypes.CDLL, shape: LowRankShape, dtype: torch.dtype) -> None:
        self._function, self._shape, self._dtype = getattr(library, _FUNCTIONS[dtype]), shape, dtype
        self._unit = _UNIT_BYTES // dtype.itemsize
        self._num_units = ceil_div(shape.num_in, self._unit)
        self._columns = torch.tensor(shape.parts).contiguous()  # int64 [P, 2]
        sizes = [self._num_units * self._unit * len(shape.parts) * shape.rank]
        sizes += [shape.rank * (last - first) for first, last in shape.parts]
        self._sizes, self.size = sizes, sum(sizes)

    def write(self, memory: torch.Tensor, part: int, a: torch.Tensor, b: torch.Tensor) -> None:
        rank, num_in, unit = self._shape.rank, self._shape.num_in, self._unit
        inputs, *outputs = memory.split(self._sizes)
        inputs = inputs.view(self._num_units, len(self._shape.parts), rank, unit)[:, part]
        inputs.zero_()
        for first in range(unit):
            own = a[:, first:num_in:unit]
            inputs[: own.shape[1], : len(a), first] = own.t()
        padded = b.new_zeros(len(b), rank)
        padded[:, : len(a)] = b
        num_whole = len(b) // _LANES * _LANES
        whole, rest = outputs[part].split([num_whole * rank, (len(b) - num_whole) * rank])
        whole.view(-1, rank // unit, _LANES, unit).copy_(
            padded[:num_whole].view(-1, _LANES, rank // unit, unit).transpose(1, 2)
        )
        rest.view(rank // unit, -1, unit).copy_(padded[num_whole:].view(-1, rank // unit, unit).transpose(0, 1))

    def bind(self, memory: torch.Tensor, tokens: LowRankTokens) -> AddLowRank:
        function, shape, dtype = self._function, self._shape, self._dtype
        call = LowRankCall(
            memory=memory.data_ptr(), stride=memory.stride(0), columns=self._columns.data_ptr(),
            slots=tokens.slots.data_ptr(), tokens=tokens.rows.data_ptr(), num_tokens=len(tokens.slots),
            num_in=shape.num_in, num_parts=len(shape.parts), rank=shape.rank,
        )  # fmt: skip
        reference = ctypes.byref(call)

        def add(x: torch.Tensor, y: torch.Tensor, _kept: object = (memory, tokens, self._columns)) -> None:
            if x.stride(1) != 1 or x.dtype != dtype:
                x = x.to(dtype).contiguous()
            call.x, call.x_stride, call.y, call.y_stride = x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0)
            function(reference)

        return add
