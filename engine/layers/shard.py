"""What one of several ranks holds of a model, and how the ranks' results become one.

Heads and inner channels of feed-forwards are divided, experts and the vocabulary too; whatever is small, and the
stream itself, every rank has whole. A rank's layer gives its part of a sum, `total` the sum. Who alone holds a whole
model has `WHOLE`, and never asks for either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from engine.checkpoints.shard_slice import ShardSlice, Span
from engine.layers.config import AttentionConfig


class Collectives(Protocol):
    """What ranks do together. Every rank calls each in the same order."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' x, the same on each; x is lost."""

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """All ranks' x, of one shape, in their order; none but on the leader."""


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
        """Whether what must be added once is added here."""
        return self.rank == 0

    def span(self, count: int) -> Span:
        """This rank's range of `count` things; ranges may differ by one."""
        return count * self.rank // self.size, count * (self.rank + 1) // self.size

    def cut(self, dim: int, total: int, *spans: Span) -> ShardSlice | None:
        """`spans` of a dimension; None where everything is held."""
        return None if self.is_whole else ShardSlice(dim, spans, total)

    def fault(self, config: AttentionConfig) -> str:
        """Why attention cannot be divided, naming the field; empty if it can."""
        num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
        if num_heads % self.size:
            return f"num_attention_heads={num_heads}: not a multiple of tensor_parallel={self.size}"
        if config.latent is None and num_kv_heads % self.size and self.size % num_kv_heads:
            return f"num_key_value_heads={num_kv_heads}: neither multiple nor divisor of tensor_parallel={self.size}"
        return ""

    def of_attention(self, config: AttentionConfig) -> AttentionConfig:
        """This rank's heads. KV heads fewer than ranks are held by several."""
        num_kv_heads = max(config.num_kv_heads // self.size, 1)
        return replace(config, num_heads=config.num_heads // self.size, num_kv_heads=num_kv_heads)

    def heads(self, config: AttentionConfig) -> tuple[Span, Span]:
        """This rank's range of query heads, and that of KV heads."""
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
    """A range of things of `size` numbers each, of which the first begins at `first`."""
    return first + span[0] * size, first + span[1] * size
