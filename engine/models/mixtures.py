"""Read mixtures of experts: the number of experts, the router, and the layers that have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.layers.config import MoeConfig, RouterConfig
from engine.models.config import ModelConfig, UnsupportedModel
from engine.models.fields import Fields

_MAX_EXPERTS = 1024
_MAX_EXPERTS_OF_ALL_LAYERS = 1 << 16  # every expert of every layer may have its own tensors


def read_num_experts(fields: Fields, *names: str) -> int:
    """Return the number of experts from the first of `names` that exists. The name depends on family and version."""
    name = next((name for name in names if name in fields), names[0])
    return fields.whole(name, 1, _MAX_EXPERTS)


def read_router(fields: Fields, num_experts: int, default: int | None = None) -> RouterConfig:
    return RouterConfig(num_chosen=fields.whole("num_experts_per_tok", 1, num_experts, default=default))


def with_mixture(config: ModelConfig, moe: MoeConfig, has_mixture: Callable[[int], bool]) -> ModelConfig:
    """Return a copy with the mixture as the feed-forward of the layers selected by `has_mixture`."""
    if moe.num_experts * config.num_layers > _MAX_EXPERTS_OF_ALL_LAYERS:
        raise UnsupportedModel(
            f"config.json: {moe.num_experts} experts in each of num_hidden_layers={config.num_layers} layers, more than"
            f" {_MAX_EXPERTS_OF_ALL_LAYERS} in total"
        )
    return config.with_layers(lambda index, layer: replace(layer, feed_forward=moe) if has_mixture(index) else layer)
