"""What a device must be able to do for a decoder, as one set of bound operators.

`reference.py` is the specification in plain torch; `cpu.py` is what runs without a GPU; a device with Triton adds its
own. A factory gets what never changes (weights, shapes) once, after loading, and may keep it in its own layout; what
it returns is called every step. Nothing here knows a model family or a checkpoint.

Letters: T tokens, R rows (sequences), H query heads, G KV heads, D head size, C channels, N blocks, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine.checkpoints.quantized import PackedForm, QuantizedTensor

Operator = Callable[[torch.Tensor], torch.Tensor]
# What a step's tables say of its tokens' positions; gives queries and keys in qkv [T, …] theirs, in place.
Facts = tuple[torch.Tensor, ...]
Place = Callable[[torch.Tensor, Facts], object]
Add = Callable[[torch.Tensor, torch.Tensor], object]  # to a stream, in place
AddLowRank = Callable[[torch.Tensor, torch.Tensor], object]  # (x [T, C], y [T, out]), in place: see `LowRank`


@dataclass(frozen=True)
class Reach:
    """Which positions a token sees, itself and none later: all, the last `window`, or those of its own `chunk`."""

    window: int | None = None
    chunk: int | None = None

    def num_seen(self, context_lens: NDArray[np.int32]) -> NDArray[np.int32]:
        """How many positions the last token of each context sees, itself included."""
        if self.window is not None:
            return np.minimum(context_lens, self.window)
        return context_lens if self.chunk is None else (context_lens - 1) % self.chunk + 1


EVERYTHING = Reach()


@dataclass(frozen=True)
class AttentionShape:
    """What never changes about a model's attention.

    `reaches` has one entry for each layer, or one for all. Scores are query · key × `scale` (by default 1 / √D), then
    `softcap` × tanh(score / softcap) where there is one. With `value_dim`, a key's first `value_dim` numbers are its
    value and none is stored beside it.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    reaches: tuple[Reach, ...] = (EVERYTHING,)
    scale: float | None = None
    softcap: float | None = None
    value_dim: int | None = None

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def num_planes(self) -> int:
        """What is kept of a token in each KV head: key and value, or one vector that is both."""
        return 1 if self.value_dim is not None else 2

    @property
    def kv_width(self) -> int:
        """Keys and values of one token."""
        return self.num_planes * self.num_kv_heads * self.head_dim

    @property
    def mixed_head_dim(self) -> int:
        """Numbers of one head's mix of values."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def mixed_width(self) -> int:
        return self.num_heads * self.mixed_head_dim

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    def distinct_reaches(self, num_layers: int) -> tuple[list[Reach], list[int]]:
        """The reaches without repeats, and the index of each layer's among them."""
        reaches = self.reaches if len(self.reaches) == num_layers else self.reaches * num_layers
        distinct = list(dict.fromkeys(reaches))
        return distinct, [distinct.index(reach) for reach in reaches]


@dataclass(frozen=True)
class Activation:
    """What a feed-forward does between its matrices.

    `kind` is silu, gelu, gelu_tanh or relu. Gated: kind(first half) × second half. With `limit` (gated silu only) the
    first half is at most `limit`, the second within ± `limit` plus 1, and silu's slope is `slope`.
    """

    kind: str = "silu"
    is_gated: bool = True
    limit: float | None = None
    slope: float = 1.0


GATED_SILU = Activation()


@dataclass(frozen=True)
class LowRankShape:
    """What adapters change in a linear map from x [T, C] to y [T, out]: for each of P parts the columns [first, last)
    of y, by x A B with A [C, r] and B [r, last - first]. `rank` r is a multiple of 8, `num_in` C."""

    num_in: int
    rank: int
    parts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class LowRankTokens:
    """n tokens of a step that go through adapters: which adapter each has, and which row of x and y it is."""

    slots: torch.Tensor  # int32 [n], equal ones side by side
    rows: torch.Tensor  # int64 [n]


class LowRank(Protocol):
    """Adds adapters to the outputs of one linear map. An adapter of it is `size` numbers in an order of this kernel's
    own, zeros at first. Hidden numbers x A are rounded to the type of the matrices."""

    @property
    def size(self) -> int: ...

    def write(self, memory: torch.Tensor, part: int, a: torch.Tensor, b: torch.Tensor) -> None:
        """Put a part's a [r', C] and b [width, r'], r' <= r, into an adapter's memory [size]."""

    def bind(self, memory: torch.Tensor, tokens: LowRankTokens) -> AddLowRank:
        """What adds to y, given x, what the tokens' own of the adapters `memory` [S, size] say; rows of memory may lie
        apart, rows of y have no gaps in them. A token's result is the same whatever others are beside it."""


@dataclass(frozen=True, eq=False)
class KvPool:
    """The paged KV cache: the only place where a finished step's keys and values are kept.

    `data` is [L, N × block size, planes × G × D]: per layer one row a slot, keys before values.
    """

    data: torch.Tensor
    block_size: int

    @property
    def num_layers(self) -> int:
        return self.data.shape[0]

    @property
    def num_blocks(self) -> int:
        return self.data.shape[1] // self.block_size


class AttentionStep(Protocol):
    """The facts of one step that attention needs; `engine.inputs.StepInputs` has them."""

    @property
    def slot_mapping(self) -> torch.Tensor: ...  # int64 [T]
    @property
    def query_starts(self) -> NDArray[np.int32]: ...  # [R + 1]
    @property
    def context_lens(self) -> NDArray[np.int32]: ...  # [R]
    @property
    def block_tables(self) -> NDArray[np.int32]: ...  # [R, max blocks]
    @property
    def sequence_ids(self) -> NDArray[np.int64]: ...  # [R]
    @property
    def num_decode_rows(self) -> int: ...
    @property
    def has_drafts(self) -> bool: ...


class Attention(Protocol):
    """Causal attention over a paged pool, for prefill chunks, decode rows and both in one step.

    `begin` is called once a step, then `attend` for each layer in order. `attend` gets rotated queries and keys and the
    values as `qkv` [T, (H + planes × G) × D], stores keys and values in the pool at `slot_mapping`, and returns
    [T, H × mixed head size]. `wipe`, between steps, overwrites whatever it has beside the pool.
    """

    def begin(self, step: AttentionStep) -> None: ...
    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor: ...
    def wipe(self) -> None: ...


class Kernels(Protocol):
    """The factories. Residual streams are float32 [T, C]; everything between norms and residuals has `dtype`."""

    has_cheap_multi_token_rows: bool
    """Whether attention takes several tokens of a decode row at little more than the cost of one, beside any others."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        """x [T, C] -> x @ weight.T + bias. The factory may release `weight`."""

    def takes_packed(self, form: PackedForm, shape: tuple[int, int], dtype: torch.dtype, /) -> bool:
        """Whether `packed_linear` exists for a weight [out, C] in this form and inputs of `dtype`."""

    def packed_linear(self, matrix: QuantizedTensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Operator:
        """As `linear`, of a weight that stays packed. Where its form says so, each row of x is rounded first: to the
        255 levels from minus to plus its largest number."""

    def linear_per_head(self, weight: torch.Tensor) -> Operator:
        """weight [H, in, out]: x [T, H × in] -> each head through its own matrix, [T, H × out]."""

    def rms_norm(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> Operator:
        """x [T, C] float32 -> x / sqrt(mean(x²) + eps) × weight, in `dtype`."""

    def layer_norm(self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, dtype: torch.dtype) -> Operator:
        """x [T, C] float32 -> (x - mean(x)) / sqrt(variance(x) + eps) × weight + bias, in `dtype`."""

    def norm_heads(self, weight: torch.Tensor, eps: float) -> Callable[[torch.Tensor], None]:
        """weight [heads, D] float32: each head of x [T, heads × D …] divided by its root mean square, in place."""

    def rotation(self, num_heads: int) -> Place:
        """Rotate the first `num_heads` heads of qkv [T, …] in place.

        By cos [T, 1, 1, D/2] and sin [T, 1, 2, D/2] with the first half negated:
        (a, b) -> (a cos - b sin, b cos + a sin).
        """

    def activation(self, activation: Activation) -> Operator:
        """Gated: [T, 2 I] -> [T, I]. Not gated: [T, I] -> [T, I]."""

    def add(self, multiplier: float) -> Add:
        """stream [T, C] float32, x [T, C] -> stream += x × multiplier, in place."""

    def low_rank(self, shape: LowRankShape, dtype: torch.dtype, /) -> LowRank | None:
        """A kernel for adapters of that shape; None where torch's own operators are as good as anything."""

    def attention(self, pool: KvPool, shape: AttentionShape, sinks: Sequence[torch.Tensor] = ()) -> Attention:
        """`sinks`, float32 [H] for each layer, are scores that take part in every softmax and mix no value."""
