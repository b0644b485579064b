"""Products of a mixture's experts in Triton: one launch multiplies all tokens with the matrices of their experts.

A plan divides the pairs of token and expert, sorted by expert, into tiles of up to 64 pairs of one expert. The grid has
the most tiles that any choice of experts needs; programs of empty tiles exit. Sums are float32 in a fixed order, and
all tiles have the same size, so a token's result does not depend on other tokens. `device_experts.mix_slowly` is the
definition. Compatible with Triton 3.6 and later; with TRITON_INTERPRET=1 the kernels run on a CPU.

Does not import `annotations` from `__future__`, because Triton evaluates those of its kernels.

Letters: T tokens, C channels, E experts of this rank, K selected experts per token, N outputs of a matrix.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.interface import ExpertMatrices

_TILE = 64  # pairs
_OUTPUTS = 128  # outputs per program
_PLAN_BLOCK = 1024  # pairs that the planning kernel reads at once
_COMBINE_BLOCK = 1024  # channels per program


@dataclass(frozen=True, eq=False)
class TilePlan:
    """The pairs t × K + k of token and its k-th expert, sorted by expert and then by token, in tiles."""

    order: torch.Tensor  # int32 [T K], the pair at each position; undefined beyond this rank's pairs
    tiles: torch.Tensor  # int32 [tiles, 3]: expert, first position, number of pairs (0 if the tile is not used)
    num_chosen: int


@triton.jit(do_not_specialize=["first", "num_pairs", "num_experts"])
def _plan(experts, order, tiles, first, num_pairs, num_experts, tile: tl.constexpr, block: tl.constexpr):
    """Program e sorts the pairs of expert e. Its tiles begin at tile (position // size) + e: these numbers are at least
    as far apart as the tiles of an expert are many."""
    expert = tl.program_id(0)
    below = tl.zeros([block], tl.int32)
    equal = tl.zeros([block], tl.int32)
    for start in range(0, num_pairs, block):
        i = start + tl.arange(0, block)
        found = tl.load(experts + i, mask=i < num_pairs, other=-1).to(tl.int32) - first
        below += ((found >= 0) & (found < expert) & (i < num_pairs)).to(tl.int32)
        equal += ((found == expert) & (i < num_pairs)).to(tl.int32)
    begin, count = tl.sum(below, 0), tl.sum(equal, 0)
    position = begin
    for start in range(0, num_pairs, block):
        i = start + tl.arange(0, block)
        found = tl.load(experts + i, mask=i < num_pairs, other=-1).to(tl.int32) - first
        is_own = (found == expert) & (i < num_pairs)
        rank = tl.cumsum(is_own.to(tl.int32), 0)
        tl.store(order + position + rank - 1, i, mask=is_own)
        position += tl.sum(is_own.to(tl.int32), 0)
    first_tile = begin // tile + expert
    next_tile = (begin + count) // tile + expert + 1
    if expert == num_experts - 1:
        next_tile = num_pairs // tile + num_experts
    for number in range(first_tile, next_tile):
        done = (number - first_tile) * tile
        tl.store(tiles + number * 3, expert)
        tl.store(tiles + number * 3 + 1, begin + done)
        tl.store(tiles + number * 3 + 2, tl.minimum(tl.maximum(count - done, 0), tile))


@triton.jit
def _multiply(
    x,
    matrices,
    bias,
    out,
    order,
    tiles,
    x_stride,
    num_in: tl.constexpr,
    num_out: tl.constexpr,
    pairs_per_row: tl.constexpr,
    is_input: tl.constexpr,
    has_bias: tl.constexpr,
    is_even: tl.constexpr,
    num_m: tl.constexpr,
    num_n: tl.constexpr,
    num_k: tl.constexpr,
):
    tile = tl.program_id(0)
    count = tl.load(tiles + tile * 3 + 2)
    if count == 0:
        return
    expert = tl.load(tiles + tile * 3).to(tl.int64)
    m = tl.arange(0, num_m)
    is_pair = m < count
    position = tl.load(tiles + tile * 3 + 1) + m
    pair = tl.load(order + position, mask=is_pair, other=0)
    row = pair // pairs_per_row if is_input else position  # row of x
    target = position if is_input else pair  # row of out
    n = tl.program_id(1) * num_n + tl.arange(0, num_n)
    is_output = n < num_out
    k = tl.arange(0, num_k)
    x_at = x + row.to(tl.int64)[:, None] * x_stride + k[None, :]
    matrix_at = matrices + expert * num_out * num_in + n.to(tl.int64)[:, None] * num_in + k[None, :]
    total = tl.zeros([num_m, num_n], tl.float32)
    for start in range(0, num_in, num_k):
        if is_even:
            rows = tl.load(x_at, mask=is_pair[:, None], other=0.0)  # [M, K]
            weights = tl.load(matrix_at, mask=is_output[:, None], other=0.0)  # [N, K]
        else:
            is_left = (k < num_in - start)[None, :]
            rows = tl.load(x_at, mask=is_pair[:, None] & is_left, other=0.0)
            weights = tl.load(matrix_at, mask=is_output[:, None] & is_left, other=0.0)
        total = tl.dot(rows, tl.trans(weights), total, input_precision="ieee")
        x_at += num_k
        matrix_at += num_k
    if has_bias:
        total += tl.load(bias + expert * num_out + n, mask=is_output, other=0.0).to(tl.float32)[None, :]
    out_at = out + target.to(tl.int64)[:, None] * num_out + n[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=is_pair[:, None] & is_output[None, :])


@triton.jit(do_not_specialize=["first", "num_experts"])
def _combine(
    outputs,
    weights,
    experts,
    out,
    first,
    num_experts,
    width: tl.constexpr,
    num_chosen: tl.constexpr,
    has_weights: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * block + tl.arange(0, block)
    total = tl.zeros([block], tl.float32)
    for number in tl.static_range(num_chosen):
        pair = token * num_chosen + number
        expert = tl.load(experts + pair).to(tl.int32) - first
        last = tl.where((expert >= 0) & (expert < num_experts), width, 0)  # other ranks add the other experts
        values = tl.load(outputs + pair * width + i, mask=i < last, other=0.0).to(tl.float32)
        if has_weights:
            values *= tl.load(weights + pair)
        total += values
    tl.store(out + token * width + i, total, mask=i < width)


def plan_tiles(experts: torch.Tensor, first: int, num_experts: int) -> TilePlan:
    """Sort experts int64 [T, K]. This rank has experts [first, first + num_experts)."""
    num_pairs = experts.numel()
    order = experts.new_empty(num_pairs, dtype=torch.int32)
    tiles = experts.new_empty(num_pairs // _TILE + num_experts, 3, dtype=torch.int32)
    _plan[(num_experts,)](
        experts.contiguous(), order, tiles, first, num_pairs, num_experts, tile=_TILE, block=_PLAN_BLOCK, num_warps=4
    )
    return TilePlan(order, tiles, experts.shape[1])


def multiply(
    x: torch.Tensor, matrices: torch.Tensor, bias: torch.Tensor | None, plan: TilePlan, *, is_input: bool
) -> torch.Tensor:
    """Return the products of all pairs with their expert's matrix, one of [E, N, C], and its bias, one of [E, N].

    If `is_input`, x has one row per token or one per pair, and rows of the result [T K, N] are sorted by expert.
    Otherwise rows of x are sorted, and those of the result are ordered by token.
    """
    num_in, num_out, num_pairs = matrices.shape[2], matrices.shape[1], len(plan.order)
    out = x.new_empty(num_pairs, num_out)
    is_exact = (
        x.dtype == torch.float32
    )  # float32 products are unrolled by the compiler, which takes long for large ones
    num_n, num_k = (16, 16) if is_exact else (_OUTPUTS, 64)
    _multiply[(len(plan.tiles), triton.cdiv(num_out, num_n))](
        x,
        matrices,
        out if bias is None else bias,
        out,
        plan.order,
        plan.tiles,
        x.stride(0),
        num_in=num_in,
        num_out=num_out,
        pairs_per_row=max(num_pairs // max(len(x), 1), 1),
        is_input=is_input,
        has_bias=bias is not None,
        is_even=num_in % num_k == 0,
        num_m=_TILE,
        num_n=num_n,
        num_k=num_k,
        num_warps=4,
        num_stages=1 if is_exact else 4,
    )
    return out


def combine(
    outputs: torch.Tensor, weights: torch.Tensor | None, experts: torch.Tensor, matrices: ExpertMatrices
) -> torch.Tensor:
    """Return float32 [T, C]: the sum of each token's rows in `outputs` [T K, C], times `weights` [T, K] if given."""
    num_tokens, num_chosen = experts.shape
    width = outputs.shape[1]
    out = outputs.new_empty(num_tokens, width, dtype=torch.float32)
    _combine[(num_tokens, triton.cdiv(width, _COMBINE_BLOCK))](
        outputs,
        out if weights is None else weights.contiguous(),
        experts.contiguous(),
        out,
        matrices.first,
        len(matrices.up),
        width=width,
        num_chosen=num_chosen,
        has_weights=weights is not None,
        block=_COMBINE_BLOCK,
    )
    return out
