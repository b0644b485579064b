"""Normalization of the residual stream: RMS norm, layer norm, or none."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.kernels.interface import NormConstants, Operator
from engine.kernels.reference import Kernels
from engine.layers.config import NormConfig


class Norm:
    """x [T, C] float32 -> normalized and scaled, in `out_dtype` (the weight's by default). `forward` exists after
    `bind`."""

    forward: Operator

    def __init__(
        self,
        config: NormConfig,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        out_dtype: torch.dtype | None = None,
    ) -> None:
        self._config = config
        self._out_dtype = out_dtype or dtype
        self._weight = torch.empty(width, dtype=dtype, device=device)  # [C]
        self._bias = torch.empty(width, dtype=dtype, device=device) if config.has_bias else None  # [C]

    def destinations(self, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        yield f"{name}.weight", self._weight
        if self._bias is not None:
            yield f"{name}.bias", self._bias

    def constants(self) -> NormConstants:
        """Return the loaded constants, for an operator that includes this norm."""
        config = self._config
        weight = self._weight.float() + config.offset if config.offset else self._weight
        return NormConstants(config.kind, self._out_dtype, weight, self._bias, config.eps)

    def bind(self, kernels: Kernels) -> None:
        self.forward = kernels.norm(self.constants())


class NoNorm:
    """The unchanged stream in `dtype`, for layers that normalize only their output."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def destinations(self, _name: str) -> Iterator[tuple[str, torch.Tensor]]:
        yield from ()

    def constants(self) -> NormConstants:
        return NormConstants("none", self._dtype)
