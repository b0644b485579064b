"""Operand and operator types of the kernels: attention shapes and windows, the KV pool, activations, LoRA operands.

`reference.py` defines the operators themselves. Nothing here depends on a model family or a checkpoint format.

Letters: T tokens, R rows (sequences), H query heads, G KV heads, D head size, C channels, N blocks, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, cast

import numpy as np
import torch

from engine.arrays import Ints

Operator = Callable[[torch.Tensor], torch.Tensor]
AddInPlace = Callable[[torch.Tensor, torch.Tensor], object]  # adds the second operand to the first
AddLowRank = Callable[[torch.Tensor, torch.Tensor], object]  # (x [T, C], y [T, out]): adds to y, see `LowRank`
AddNorm = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (stream [T, C], x [T, C]) -> y, see `Kernels.add_norm`
MixExperts = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # see `Kernels.experts`
EmbedNorm = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # token ids [T] -> stream and y, both [T, C]

FLOAT8 = torch.float8_e4m3fn
_FLOAT8_NAN = 0x7F


@dataclass(frozen=True, eq=False)
class Float8Rows:
    """Rows [T, C] of 8-bit floats, each with its own scale: `values` × `scales`.

    Operators between products pass it on in place of a tensor, if the next product takes 8-bit floats.
    """

    values: torch.Tensor  # FLOAT8 [T, C]
    scales: torch.Tensor  # float32 [T, 1]

    def expand(self, dtype: torch.dtype) -> torch.Tensor:
        return (self.values.float() * self.scales).to(dtype)

    def as_operand(self) -> torch.Tensor:
        return cast(torch.Tensor, self)


@dataclass(frozen=True, eq=False)
class NormConstants:
    """The constants of a norm over float32 [T, C] with results of `dtype`.

    `kind` is rms, layer or none, which only converts. Results of type FLOAT8 are `Float8Rows`.
    """

    kind: str
    dtype: torch.dtype
    weight: torch.Tensor | None = None  # [C]
    bias: torch.Tensor | None = None  # [C]
    eps: float = 0.0


@dataclass(frozen=True, eq=False)
class RotaryLookup:
    """The cosines and sines of a step's positions. Unpacks to (cos, sin), see `Kernels.rotation`, and looks both up
    only once. Kernels that look up positions themselves read the fields instead."""

    table: torch.Tensor  # [P, 1, 3, D/2]: cosines, negated sines, sines
    positions: torch.Tensor  # int64 [T]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._rows)

    @cached_property
    def _rows(self) -> tuple[torch.Tensor, ...]:
        return self.table.index_select(0, self.positions).split((1, 2), 2)


RotaryTables = RotaryLookup | tuple[torch.Tensor, ...]  # (cos, sin), see `Kernels.rotation`
Rotate = Callable[[torch.Tensor, RotaryTables], object]  # rotates queries and keys in qkv [T, …] in place


@dataclass(frozen=True)
class AttentionWindow:
    """The positions a token attends to: the last `size` including its own, or those of its own `chunk`, or all."""

    size: int | None = None
    chunk: int | None = None

    def num_visible(self, context_lens: Ints) -> Ints:
        """Return how many positions the last token of each context attends to, itself included."""
        if self.size is not None:
            return np.minimum(context_lens, self.size)
        return context_lens if self.chunk is None else (context_lens - 1) % self.chunk + 1


FULL_ATTENTION = AttentionWindow()


@dataclass(frozen=True)
class AttentionShape:
    """The constants of a model's attention.

    `windows` has one entry per layer, or one for all layers. Scores are query · key × `scale` (default 1 / √D), then
    `softcap` × tanh(score / softcap) if `softcap` is set. With `value_dim` (latent attention) a token has one vector
    per KV head: the whole vector is the key, its first `value_dim` numbers are the value.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[AttentionWindow, ...] = (FULL_ATTENTION,)
    scale: float | None = None
    softcap: float | None = None
    value_dim: int | None = None

    @cached_property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @cached_property
    def num_planes(self) -> int:
        """Vectors stored per token and KV head: 2 (key and value), or 1 if the value is part of the key."""
        return 1 if self.value_dim is not None else 2

    @cached_property
    def kv_width(self) -> int:
        """Numbers stored per token and layer."""
        return self.num_planes * self.num_kv_heads * self.head_dim

    @cached_property
    def output_head_dim(self) -> int:
        return self.head_dim if self.value_dim is None else self.value_dim

    @cached_property
    def output_width(self) -> int:
        return self.num_heads * self.output_head_dim

    @cached_property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    def distinct_windows(self, num_layers: int) -> tuple[list[AttentionWindow], list[int]]:
        """Return the windows without repeats, and for each layer the index of its window in that list."""
        windows = self.windows if len(self.windows) == num_layers else self.windows * num_layers
        distinct = list(dict.fromkeys(windows))
        return distinct, [distinct.index(window) for window in windows]


@dataclass(frozen=True)
class Activation:
    """The activation function of a feed-forward layer.

    `kind` is silu, gelu, gelu_tanh or relu. Gated: kind(first half) × second half. With `limit` (gated silu only) the
    first half is at most `limit`, the second within ± `limit` plus 1, and the sigmoid's argument is multiplied by
    `slope`.
    """

    kind: str = "silu"
    is_gated: bool = True
    limit: float | None = None
    slope: float = 1.0


GATED_SILU = Activation()


@dataclass(frozen=True, eq=False)
class ExpertMatrices:
    """The experts [first, first + E) of a mixture of `num_experts`, with I inner channels each.

    `up` is [E, 2 I, C], or [E, I, C] if `activation` is not gated; `down` is [E, C, I].
    """

    up: torch.Tensor
    down: torch.Tensor
    up_bias: torch.Tensor | None  # [E, 2 I]
    down_bias: torch.Tensor | None  # [E, C]
    activation: Activation
    num_experts: int
    first: int = 0
    is_input_weighted: bool = False  # weights multiply the inputs instead of the outputs


@dataclass(frozen=True)
class LowRankShape:
    """The part of a linear map x [T, C] -> y [T, out] that LoRA adapters change.

    For each of P parts, columns [first, last) of y get x A B added, with A [C, r] and B [r, last - first]. `num_in` is
    C; `rank` r is a multiple of 8.
    """

    num_in: int
    rank: int
    parts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class LowRankTokens:
    """The n tokens of a step that use adapters."""

    slots: torch.Tensor  # int32 [n] on the host, the adapter of each; equal ones are adjacent
    rows: torch.Tensor  # int64 [n], the token's row in x and y; on a device int32 [T], padded
    tiles: torch.Tensor | None = None  # only on a device, see `engine.kernels.device_low_rank.tile_tokens`


class LowRank(Protocol):
    """A LoRA kernel for one linear map. Hidden numbers x A are rounded to the type of the matrices."""

    @property
    def size(self) -> int:
        """Numbers that one adapter takes in this kernel's own layout. Zeros are an adapter that adds nothing."""

    def write(self, memory: torch.Tensor, part: int, a: torch.Tensor, b: torch.Tensor) -> None:
        """Write a part's matrices a [r', C] and b [width, r'], r' <= r, into an adapter's memory [size]."""

    def bind(self, memory: torch.Tensor, tokens: LowRankTokens) -> AddLowRank:
        """Return the operator that adds each token's adapter, one of memory [S, size], to y.

        Rows of `memory` may be strided; rows of y are contiguous. A token's result does not depend on other tokens.
        On a device, `memory` is int64 [S], the adapters' addresses.
        """


@dataclass(frozen=True, eq=False)
class KvPool:
    """The paged KV cache of a CPU: `data` is [L, N × block size, planes × G × D], per layer one row per slot, keys
    before values. `engine.kernels.block_pool` has the pool of a device. With `scales`, the numbers are 8-bit floats,
    see `engine.kernels.float8_kv`."""

    layout: ClassVar[str] = "slots"  # blocks of pools with different layouts are not interchangeable

    data: torch.Tensor
    block_size: int
    scales: torch.Tensor | None = None  # float32 [L, planes, G]

    @property
    def num_layers(self) -> int:
        return self.data.shape[0]

    @property
    def num_blocks(self) -> int:
        return self.data.shape[1] // self.block_size

    @property
    def blocks(self) -> torch.Tensor:
        """Return a view of `data` whose first dimension is N."""
        return self.data.unflatten(1, (-1, self.block_size)).movedim(1, 0)

    def scales_of(self, layer: int) -> torch.Tensor | None:
        """Return the scales of a layer, float32 [planes, G], or None if the pool has none."""
        return None if self.scales is None else self.scales[layer]

    def zero_blocks(self, block_ids: Ints) -> None:
        """Overwrite blocks with zeros. Asynchronous on a device."""
        self._indexable_blocks.index_fill_(0, self._indices(block_ids), 0)

    def copy_blocks(self, sources: Ints, targets: Ints) -> None:
        """Copy each source block to its target. No block is both. Asynchronous on a device."""
        blocks = self._indexable_blocks
        blocks.index_copy_(0, self._indices(targets), blocks.index_select(0, self._indices(sources)))

    def poison(self, block_ids: Sequence[int] | None = None) -> None:
        """Fill blocks (by default all) with NaN, so that reading KV that was not written shows. For tests."""
        nan = float("nan") if self.scales is None else _FLOAT8_NAN
        self._indexable_blocks[slice(None) if block_ids is None else list(block_ids)] = nan

    @property
    def _indexable_blocks(self) -> torch.Tensor:
        """The blocks with 8-bit floats as bytes, because torch cannot index these floats on every device."""
        return self.blocks if self.scales is None else self.blocks.view(torch.uint8)

    def _indices(self, block_ids: Ints) -> torch.Tensor:
        return torch.from_numpy(block_ids).long()


class AttentionStep(Protocol):
    """The fields of `engine.inputs.StepInputs` that attention needs."""

    @property
    def slot_mapping(self) -> torch.Tensor: ...  # int64 [T]
    @property
    def query_starts(self) -> Ints: ...  # [R + 1]
    @property
    def context_lens(self) -> Ints: ...  # [R]
    @property
    def block_tables(self) -> Ints: ...  # [R, max blocks]
    @property
    def num_decode_rows(self) -> int: ...  # the first rows have one token each


class Attention(Protocol):
    """Causal attention over a paged pool, for prefill chunks, decode rows and both in one step.

    Call `begin` once per step, then `attend` for each layer in order. `attend` takes rotated queries and keys and the
    values as `qkv` [T, (H + planes × G) × D], stores keys and values in the pool at `slot_mapping`, and returns
    [T, H × output head size].
    """

    def begin(self, step: AttentionStep) -> None: ...
    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor: ...


# (attention, layer, qkv [T, (H + 2 G) D], position tables) -> [T, H D], see `Kernels.self_attention`; may change qkv
SelfAttend = Callable[[Attention, int, torch.Tensor, RotaryTables], torch.Tensor]
