"""The work of the timed trials: products, attention, LoRA and the operators between them, see `choice.py`.

Each function returns one contest per amount of work. `native` and `plain` are the kernels to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from engine.arrays import Ints, ceil_div
from engine.checkpoints.quantized import quantized
from engine.kernels.cpu_linear import bind_linear
from engine.kernels.interface import GATED_SILU, AttentionShape, KvPool, LowRankShape, LowRankTokens, Operator
from engine.kernels.native.choice import Contest
from engine.kernels.native.operators import BY_OUTPUT
from engine.kernels.reference import Kernels

ROWS = (1, 4, 16)
_SIZES = {"small": (512, 512), "large": (2048, 2048)}  # (out, in) of the product that is timed
_GROUP_SIZE = 32  # inputs with one scale
_WIDTH = 768  # channels of the model whose other operators are timed
_ATTENTION = AttentionShape(num_heads=12, num_kv_heads=4, head_dim=64)
_BLOCK_SIZE = 16
_STEPS = ((1, 1, 128), (16, 1, 128), (1, 128, 128))  # rows, tokens of each, and their contexts


def product(bind: Callable[[torch.Tensor], Operator], size: str, dtype: torch.dtype) -> list[Contest]:
    """Compare `bind`, which returns the compiled product with a weight [out, in] of `dtype`, with torch's product."""
    weight = torch.ones(_SIZES[size], dtype=dtype)
    return _products(bind(weight), [(bind_linear(weight, None), dtype)], dtype, weight.shape[1])


def packed_product(native: Kernels, kind: str, size: str) -> list[Contest]:
    """Compare the compiled product of a kind of packed weights with torch's products of the expanded weights."""
    num_out, num_in = _SIZES[size]
    bits = 4 if kind.startswith("4") else 8
    group_size = num_in if kind == BY_OUTPUT else _GROUP_SIZE
    levels = torch.full((num_out, num_in), 1 << (bits - 1), dtype=torch.uint8)
    matrix = quantized(levels, bits, torch.ones(num_out, num_in // group_size), None, group_size, None)
    matrix = replace(matrix, is_input_quantized=kind == BY_OUTPUT)
    weights = [torch.ones(num_out, num_in, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)]
    plain = [(bind_linear(weight, None), weight.dtype) for weight in weights]
    return _products(native.packed_linear(matrix, None, torch.bfloat16), plain, torch.bfloat16, num_in)


def attention(native: Kernels, plain: Kernels, dtype: torch.dtype) -> list[Contest]:
    """Compare attention of decode rows and of a prompt."""
    num_slots = max(num_rows * context for num_rows, _, context in _STEPS)
    pool = KvPool(torch.zeros(1, num_slots, _ATTENTION.kv_width, dtype=dtype), _BLOCK_SIZE)
    found = []
    for num_rows, num_tokens, context in _STEPS:
        step = _step(num_rows, num_tokens, context)
        qkv = torch.ones(num_rows * num_tokens, _ATTENTION.query_width + _ATTENTION.kv_width, dtype=dtype)
        calls = []
        for kernels in (native, plain):
            bound = kernels.attention(pool, _ATTENTION)
            bound.begin(step)
            calls.append(partial(bound.attend, 0, qkv))
        found.append(Contest(calls[0], calls[1:]))
    return found


def low_rank(native: Kernels, plain: Kernels, dtype: torch.dtype) -> list[Contest]:
    """Compare a LoRA adapter of rank 16, for decode rows and for a prompt."""
    shape = LowRankShape(_WIDTH, 16, ((0, _WIDTH),))
    found = []
    for num_tokens in ROWS:
        tokens = LowRankTokens(torch.zeros(num_tokens, dtype=torch.int32), torch.arange(num_tokens))
        x, calls = torch.ones(num_tokens, _WIDTH, dtype=dtype), []
        for kernels in (native, plain):
            kernel = kernels.low_rank(shape, dtype)
            add = kernel.bind(torch.zeros(1, kernel.size, dtype=dtype), tokens)
            calls.append(partial(add, x, torch.ones(num_tokens, _WIDTH, dtype=dtype)))
        found.append(Contest(calls[0], calls[1:]))
    return found


def small_operators(native: Kernels, plain: Kernels) -> list[Contest]:
    """Compare a norm, a rotation, a gate and an addition in sequence."""
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        for num_tokens in ROWS:
            calls = [_small_operators(kernels, num_tokens, dtype) for kernels in (native, plain)]
            found.append(Contest(calls[0], calls[1:]))
    return found


def _products(
    native: Operator, plain: Sequence[tuple[Operator, torch.dtype]], dtype: torch.dtype, num_in: int
) -> list[Contest]:
    found = []
    for num_rows in ROWS:
        others = [partial(operator, torch.ones(num_rows, num_in, dtype=own)) for operator, own in plain]
        found.append(Contest(partial(native, torch.ones(num_rows, num_in, dtype=dtype)), others))
    return found


def _small_operators(kernels: Kernels, num_tokens: int, dtype: torch.dtype) -> Callable[[], object]:
    norm, rotate = kernels.rms_norm(torch.ones(_WIDTH), 1e-6, dtype), kernels.rotation(_WIDTH // 64)
    gate, add = kernels.activation(GATED_SILU), kernels.add(1.0)
    stream, qkv = torch.ones(num_tokens, _WIDTH), torch.ones(num_tokens, _WIDTH, dtype=dtype)
    gate_up = torch.ones(num_tokens, 4 * _WIDTH, dtype=dtype)
    update = torch.zeros(num_tokens, _WIDTH, dtype=dtype)
    tables = (torch.ones(num_tokens, 1, 1, 32, dtype=dtype), torch.ones(num_tokens, 1, 2, 32, dtype=dtype))

    def run() -> None:
        norm(stream)
        rotate(qkv, tables)
        gate(gate_up)
        add(stream, update)

    return run


@dataclass(frozen=True, eq=False)
class _Step:
    """The fields of a step that attention needs."""

    slot_mapping: torch.Tensor
    query_starts: Ints
    context_lens: Ints
    block_tables: Ints
    num_decode_rows: int


def _step(num_rows: int, num_tokens: int, context: int) -> _Step:
    """Return a step of rows with `num_tokens` new tokens at the end of `context` each, in consecutive blocks."""
    blocks_per_row = ceil_div(context, _BLOCK_SIZE)
    tables = np.arange(num_rows * blocks_per_row, dtype=np.int32).reshape(num_rows, -1)
    positions = np.arange(context - num_tokens, context)
    slots = (np.arange(num_rows)[:, None] * blocks_per_row * _BLOCK_SIZE + positions).ravel()
    return _Step(
        slot_mapping=torch.from_numpy(slots.astype(np.int64)),
        query_starts=np.arange(num_rows + 1, dtype=np.int32) * num_tokens,
        context_lens=np.full(num_rows, context, np.int32),
        block_tables=tables,
        num_decode_rows=num_rows if num_tokens == 1 else 0,
    )
