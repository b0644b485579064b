"""The feed-forward of one pair of matrices, gated or not."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.kernels.interface import Kernels, Operator
from engine.layers.config import MlpConfig
from engine.layers.linear import Linear


class Mlp:
    """x [T, C] -> [T, C] through `config.inner` channels. `up` names one matrix or two, gate first."""

    def __init__(
        self,
        config: MlpConfig,
        up: tuple[str, ...],
        down: str,
        num_channels: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        width = config.inner * (2 if config.activation.is_gated else 1)
        parts = dict.fromkeys(up, width // len(up))
        self._config = config
        self._up = Linear(parts, num_channels, config.has_bias, dtype, device)
        self._down = Linear({down: num_channels}, config.inner, config.has_bias, dtype, device)
        self._activate: Operator

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._up, self._down

    def destinations(self, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
        for linear in self.linears:
            yield from linear.destinations(prefix)

    def bind(self, kernels: Kernels) -> None:
        for linear in self.linears:
            linear.bind(kernels)
        self._activate = kernels.activation(self._config.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._down.forward(self._activate(self._up.forward(x)))
