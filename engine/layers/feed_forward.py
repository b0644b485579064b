"""The feed-forward of one pair of matrices, gated or not."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.checkpoints.shard_slice import Destination
from engine.kernels.interface import Operator
from engine.kernels.reference import Kernels
from engine.layers.config import MlpConfig
from engine.layers.linear import Linear
from engine.layers.shard import WHOLE, Shard


class Mlp:
    """x [T, C] -> [T, C] through `config.inner` channels, or this rank's `shard` of them and of the sum.

    `up` names one matrix or two, gate first.
    """

    def __init__(
        self,
        config: MlpConfig,
        up: tuple[str, ...],
        down: str,
        num_channels: int,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard = WHOLE,
    ) -> None:
        first, last = shard.span(config.inner)
        num_halves = 2 if config.activation.is_gated else 1
        per_part = num_halves // len(up)  # number of halves in each matrix
        spans = [(half * config.inner + first, half * config.inner + last) for half in range(per_part)]
        parts, cut = dict.fromkeys(up, per_part * (last - first)), shard.cut(0, per_part * config.inner, *spans)
        self._config = config
        self._up = Linear(parts, num_channels, config.has_bias, dtype, device, dict.fromkeys(up, cut))
        has_bias, cuts = config.has_bias and shard.is_first, {down: shard.cut(1, config.inner, (first, last))}
        self._down = Linear({down: num_channels}, last - first, has_bias, dtype, device, cuts)
        self._activate: Operator

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._up, self._down

    def destinations(self, prefix: str) -> Iterator[tuple[str, Destination]]:
        for linear in self.linears:
            yield from linear.destinations(prefix)

    def bind(self, kernels: Kernels) -> None:
        for linear in self.linears:
            linear.bind(kernels)
        make = kernels.float8_activation if self._down.reads_float8 else kernels.activation
        self._activate = make(self._config.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._down.forward(self._activate(self._up.forward(x)))
