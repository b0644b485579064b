"""LoRA adapters in Triton: x A of all parts of a linear map in one launch, and its product with B in a second one.

A program handles a tile of up to 16 tokens of one adapter. The inputs are divided into four parts, whose sums the
second launch adds in order, so that few tokens still occupy the device. Sums are float32 in a fixed order: a token's
result does not depend on other tokens. Programs of unused tiles exit. `DeviceLowRank._add_slowly` is the definition.
Compatible with Triton 3.6 and later; with TRITON_INTERPRET=1 the kernels run on a CPU.

Does not import `annotations` from `__future__`, because Triton evaluates those of its kernels.

Letters: T tokens, C inputs of a linear map, P parts, r rank.
"""

import torch
import triton
import triton.language as tl

from engine.kernels.device_low_rank import COLUMNS, TILE
from engine.kernels.interface import LowRankShape, LowRankTokens

_NUM_SPLITS = 4
_INPUTS = 64  # inputs per iteration
_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@triton.jit(do_not_specialize=["num_rows"])
def _shrink(
    x,
    addresses,
    hidden,
    rows,
    tiles,
    x_stride,
    num_rows,
    num_in: tl.constexpr,
    num_hidden: tl.constexpr,
    split_size: tl.constexpr,
    dtype: tl.constexpr,
    num_m: tl.constexpr,
    num_n: tl.constexpr,
    num_k: tl.constexpr,
):
    tile, split = tl.program_id(0), tl.program_id(1)
    count = tl.load(tiles + tile * 3 + 2)
    if count == 0:
        return
    matrix = tl.load(addresses + tl.load(tiles + tile * 3)).to(tl.pointer_type(dtype))
    matrix = tl.multiple_of(matrix, 16)
    m = tl.arange(0, num_m)
    position = tl.load(tiles + tile * 3 + 1) + m
    row = tl.load(rows + position, mask=m < count, other=0).to(tl.int64)
    n = tl.arange(0, num_n)
    total = tl.zeros([num_m, num_n], tl.float32)
    for start in range(split * split_size, split * split_size + split_size, num_k):
        k = start + tl.arange(0, num_k)
        inputs = tl.load(
            x + row[:, None] * x_stride + k[None, :], mask=(m < count)[:, None] & (k < num_in)[None, :], other=0.0
        )
        a = tl.load(
            matrix + n[:, None] * num_in + k[None, :], mask=(n < num_hidden)[:, None] & (k < num_in)[None, :], other=0.0
        )
        total = tl.dot(inputs.to(dtype), tl.trans(a), total, input_precision="ieee")
    hidden_at = hidden + (split * num_rows + position)[:, None] * num_hidden + n[None, :]
    tl.store(hidden_at, total, mask=(m < count)[:, None] & (n < num_hidden)[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def _expand(
    hidden,
    addresses,
    y,
    rows,
    tiles,
    blocks,
    y_stride,
    num_rows,
    rank: tl.constexpr,
    num_hidden: tl.constexpr,
    num_splits: tl.constexpr,
    dtype: tl.constexpr,
    num_m: tl.constexpr,
    num_n: tl.constexpr,
    num_k: tl.constexpr,
):
    tile, block = tl.program_id(0), tl.program_id(1)
    count = tl.load(tiles + tile * 3 + 2)
    if count == 0:
        return
    part = tl.load(blocks + block * 4)
    first_column = tl.load(blocks + block * 4 + 1)
    num_columns = tl.load(blocks + block * 4 + 2)
    matrix = tl.load(addresses + tl.load(tiles + tile * 3)).to(tl.pointer_type(dtype))
    matrix = tl.multiple_of(matrix, 16) + tl.load(blocks + block * 4 + 3)
    m = tl.arange(0, num_m)
    position = tl.load(tiles + tile * 3 + 1) + m
    row = tl.load(rows + position, mask=m < count, other=0).to(tl.int64)
    k = tl.arange(0, num_k)
    n = tl.arange(0, num_n)
    own = tl.zeros([num_m, num_k], tl.float32)
    for split in tl.static_range(num_splits):
        hidden_at = hidden + (split * num_rows + position)[:, None] * num_hidden + part * rank + k[None, :]
        own += tl.load(hidden_at, mask=(m < count)[:, None] & (k < rank)[None, :], other=0.0)
    b_at = matrix + n[:, None] * rank + k[None, :]
    b = tl.load(b_at, mask=(n < num_columns)[:, None] & (k < rank)[None, :], other=0.0)  # [N, r]
    added = tl.dot(own.to(dtype), tl.trans(b), input_precision="ieee")
    y_at = y + row[:, None] * y_stride + first_column + n[None, :]
    is_output = (m < count)[:, None] & (n < num_columns)[None, :]
    total = tl.load(y_at, mask=is_output, other=0.0).to(tl.float32) + added
    tl.store(y_at, total.to(y.dtype.element_ty), mask=is_output)


def add_low_rank(
    shape: LowRankShape,
    dtype: torch.dtype,
    addresses: torch.Tensor,
    blocks: torch.Tensor,
    tokens: LowRankTokens,
    x: torch.Tensor,
    y: torch.Tensor,
) -> None:
    """Add the adapters' outputs for x [T, C] to y [T, out]. `blocks` are the `column_blocks` of `shape`."""
    rows, tiles = tokens.rows, tokens.tiles
    assert tiles is not None
    num_hidden = len(shape.parts) * shape.rank
    hidden = x.new_empty(_NUM_SPLITS, len(rows), num_hidden, dtype=torch.float32)
    num_k = 16 if dtype == torch.float32 else _INPUTS  # exact products are unrolled by the compiler
    _shrink[(len(tiles), _NUM_SPLITS)](
        x,
        addresses,
        hidden,
        rows,
        tiles,
        x.stride(0),
        len(rows),
        num_in=shape.num_in,
        num_hidden=num_hidden,
        split_size=triton.cdiv(shape.num_in, _NUM_SPLITS * num_k) * num_k,
        dtype=_TYPES[dtype],
        num_m=TILE,
        num_n=max(triton.next_power_of_2(num_hidden), 16),
        num_k=num_k,
        num_warps=4,
        num_stages=3,
    )
    _expand[(len(tiles), len(blocks))](
        hidden,
        addresses,
        y,
        rows,
        tiles,
        blocks,
        y.stride(0),
        len(rows),
        rank=shape.rank,
        num_hidden=num_hidden,
        num_splits=_NUM_SPLITS,
        dtype=_TYPES[dtype],
        num_m=TILE,
        num_n=COLUMNS,
        num_k=max(shape.rank, 16),
        num_warps=4,
    )
