"""One rank's shard of a model with tensor parallelism, and the collectives that combine the ranks' results.

Heads, inner channels of feed-forwards, experts and the vocabulary are divided. Every rank has the whole residual stream
and all small parameters. A rank's layer returns its part of a sum, which `all_reduce` completes. A model on one rank
has the shard `WHOLE` and uses no collectives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from engine.checkpoints.shard_slice import ShardSlice, Span
from engine.layers.config import AttentionConfig


class Collectives(Protocol):
    """Operations across the ranks. All ranks must call them in the same order."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' x, equal on every rank. `x` may be overwritten."""

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return all ranks' x in rank order on the leader, and an empty list on other ranks. Shapes must be equal."""


@dataclass(frozen=True)
class Shard:
    """Rank `rank` of `size`. Rank 0 leads."""

    rank: int = 0
    size: int = 1
    collectives: Collectives | None = None

    @property
    def is_whole(self) -> bool:
        return self.size == 1

    @property
    def is_first(self) -> bool:
        """True on the rank that adds terms that must be added only once, such as biases."""
        return self.rank == 0

    def span(self, count: int) -> Span:
        """Return this rank's range of `count` items. The sizes of the ranges differ by at most one."""
        return count * self.rank // self.size, count * (self.rank + 1) // self.size

    def cut(self, dim: int, total: int, *spans: Span) -> ShardSlice | None:
        """Return the slice with `spans` of a dimension, or None if this rank has the whole model."""
        return None if self.is_whole else ShardSlice(dim, spans, total)

    def fault(self, config: AttentionConfig) -> str:
        """Return why attention cannot be divided, with the field's name, or "" if it can."""
        num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
        if num_heads % self.size:
            return f"num_attention_heads={num_heads}: not a multiple of tensor_parallel={self.size}"
        if config.latent is None and num_kv_heads % self.size and self.size % num_kv_heads:
            return f"num_key_value_heads={num_kv_heads}: neither multiple nor divisor of tensor_parallel={self.size}"
        return ""

    def of_attention(self, config: AttentionConfig) -> AttentionConfig:
        """Return the config with this rank's number of heads. With fewer KV heads than ranks, ranks share KV heads."""
        num_kv_heads = max(config.num_kv_heads // self.size, 1)
        return replace(config, num_heads=config.num_heads // self.size, num_kv_heads=num_kv_heads)

    def heads(self, config: AttentionConfig) -> tuple[Span, Span]:
        """Return this rank's ranges of query heads and KV heads."""
        own = self.of_attention(config)
        first_kv = self.rank * config.num_kv_heads // self.size
        return self.span(config.num_heads), (first_kv, first_kv + own.num_kv_heads)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        assert self.collectives is not None, "the ranks are not joined"
        return self.collectives.all_reduce(x)

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        assert self.collectives is not None, "the ranks are not joined"
        return self.collectives.all_gather(x)


WHOLE = Shard()


def scaled(span: Span, size: int, first: int = 0) -> Span:
    """Return the range of numbers of a range of items with `size` numbers each. Item 0 begins at `first`."""
    return first + span[0] * size, first + span[1] * size
