"""What a device must be able to do for a decoder, as one set of bound operators.

`reference.py` is the specification in plain torch; `cpu.py` is what runs without a GPU; a device with Triton adds its
own. A factory gets what never changes (weights, shapes) once, after loading, and may keep it in its own layout; what
it returns is called every step. Nothing here knows a model family or a checkpoint.

Letters: T tokens, R rows (sequences), H query heads, G KV heads, D head size, C channels, N blocks, L layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Operator = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class AttentionShape:
    """What every layer's attention has in common. `window` counts the positions a token sees, itself included."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Keys and values of one token."""
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def num_rotated_heads(self) -> int:
        """Heads that carry a position: queries and keys, which lead each row of `qkv`."""
        return self.num_heads + self.num_kv_heads


@dataclass(frozen=True, eq=False)
class KvPool:
    """The paged KV cache: the only place where a finished step's keys and values are kept.

    `data` is [L, N × block size, 2 × G × D]: per layer one row a slot, keys before values.
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


class Attention(Protocol):
    """Causal attention over a paged pool, for prefill chunks, decode rows and both in one step.

    `begin` is called once a step, then `attend` for each layer in order. `attend` gets rotated queries and keys and the
    values as `qkv` [T, (H + 2 G) × D], stores keys and values in the pool at `slot_mapping`, and returns [T, H × D].
    """

    def begin(self, step: AttentionStep) -> None: ...
    def attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor: ...


class Kernels(Protocol):
    """The factories. Residual streams are float32 [T, C]; everything between norms and residuals has `dtype`."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Operator:
        """x [T, C] -> x @ weight.T + bias. The factory may release `weight`."""

    def rms_norm(self, weight: torch.Tensor, eps: float, dtype: torch.dtype) -> Operator:
        """x [T, C] float32 -> x / sqrt(mean(x²) + eps) × weight, in `dtype`."""

    def rotate(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int) -> None:
        """Rotate the first `num_heads` heads of qkv [T, …] in place.

        cos [T, 1, 1, D/2], sin [T, 1, 2, D/2] with the first half negated: (a, b) -> (a cos - b sin, b cos + a sin).
        """

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 I] -> silu(first half) × second half, [T, I]."""

    def attention(self, pool: KvPool, shape: AttentionShape) -> Attention: ...
