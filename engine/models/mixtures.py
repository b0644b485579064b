"""Mixtures of experts in configs: number of experts, routing, and the layers that have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.layers.config import MoeConfig, RouterConfig
from engine.models.config import ModelConfig, UnsupportedModel
from engine.models.fields import Fields

_MAX_EXPERTS = 1024
_MAX_ALL_EXPERTS = 1 << 16  # of all layers: each has its own tensors


def read_num_experts(fields: Fields, *names: str) -> int:
    """Under the first of `names` that is there: families and versions differ in them."""
    name = next((name for name in names if name in fields), names[0])
    return fields.whole(name, 1, _MAX_EXPERTS)


def read_router(fields: Fields, num_experts: int, default: int | None = None) -> RouterConfig:
    return RouterConfig(num_chosen=fields.whole("num_experts_per_tok", 1, num_experts, default=default))


def with_mixture(config: ModelConfig, moe: MoeConfig, has_mixture: Callable[[int], bool]) -> ModelConfig:
    """`config` with the mixture as the feed-forward of the layers that `has_mixture` is true of."""
    if moe.num_experts * config.num_layers > _MAX_ALL_EXPERTS:
        raise UnsupportedModel(
            f"config.json: {moe.num_experts} experts in each of num_hidden_layers={config.num_layers}:"
            f" more than {_MAX_ALL_EXPERTS} in all"
        )
    return config.with_layers(lambda index, layer: replace(layer, feed_forward=moe) if has_mixture(index) else layer)
