"""Self-attention of one layer around the attention kernel: projections, norms, positions.

Knows a checkpoint's names for its parts. The kernel decides the attention window and what is cached per token.

Letters: T tokens, C channels, H query heads, G KV heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from engine.checkpoints.shard_slice import Destination, ShardSlice, Span, destination_for
from engine.kernels.interface import Attention, Operator, RotaryTables, SelfAttend
from engine.kernels.reference import Kernels
from engine.layers.config import AttentionConfig, NormConfig
from engine.layers.linear import Linear
from engine.layers.shard import WHOLE, Shard, scaled


class SelfAttention:
    """Queries, keys and values from one fused matrix, for this rank's `shard` of the heads; `project` gives this
    rank's part of the all_reduce.

    `qk_norm` is head, width, weightless or None; `positions` rotary, temperature or None. `head_order` [D], if given,
    permutes each head of queries and keys, weights and norms alike: see `engine.models.rope.head_order`.
    """

    project: Operator  # [T, H D] -> [T, C], exists after `bind`

    def __init__(
        self,
        config: AttentionConfig,
        names: tuple[str, ...],
        norm: NormConfig,
        qk_norm: str | None,
        positions: str | None,
        head_order: torch.Tensor | None,
        num_channels: int,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard = WHOLE,
    ) -> None:
        whole, config = config, shard.of_attention(config)
        self._config, self._norm_config, self._qk_norm = config, norm, qk_norm
        self._positions, self._head_order = positions, head_order
        self._shard, self._whole = shard, whole
        self._query_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        widths = (self._query_width, kv_width, kv_width)
        is_split = len(names) == len(widths)
        parts = dict(zip(names, widths, strict=True)) if is_split else {names[0]: sum(widths)}
        self._head_cuts = _head_cuts(whole, shard)
        cuts = dict(zip(names, self._head_cuts, strict=True)) if is_split else {names[0]: _fused(self._head_cuts)}
        self._qkv = Linear(parts, num_channels, config.has_bias, dtype, device, cuts)
        query_cut = self._head_cuts[0]
        out_cuts = {"o_proj": query_cut and replace(query_cut, dim=1)}
        has_output_bias = config.has_output_bias and shard.is_first
        self._out = Linear({"o_proj": num_channels}, self._query_width, has_output_bias, dtype, device, out_cuts)
        # Norm weights of queries and keys, float32 [heads, D], query heads first.
        self._num_keyed_heads = config.num_heads + config.num_kv_heads
        self._norm_weight = torch.ones(self._num_keyed_heads, config.head_dim, device=device)
        self._head_norms = torch.empty(2, config.head_dim, device=device) if qk_norm == "head" else None
        self.sinks = torch.empty(config.num_heads, device=device) if config.has_sinks else None  # float32 [H]
        self._self_attend: SelfAttend
        self._normalize: list[Callable[[torch.Tensor], None]] = []  # norms that `_self_attend` does not include

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._qkv, self._out

    def destinations(self, prefix: str) -> Iterator[tuple[str, Destination]]:
        yield from self._qkv.destinations(prefix)
        yield from self._out.destinations(prefix)
        if self._head_norms is not None:
            yield f"{prefix}q_norm.weight", self._head_norms[0]
            yield f"{prefix}k_norm.weight", self._head_norms[1]
        if self._qk_norm == "width":
            queries, keys, _ = self._head_cuts
            yield (
                f"{prefix}q_norm.weight",
                destination_for(self._norm_weight[: self._config.num_heads].view(-1), queries),
            )
            yield f"{prefix}k_norm.weight", destination_for(self._norm_weight[self._config.num_heads :].view(-1), keys)
        if self.sinks is not None:
            num_heads, (queries_held, _) = self._whole.num_heads, self._shard.heads(self._whole)
            yield f"{prefix}sinks", destination_for(self.sinks, self._shard.cut(0, num_heads, queries_held))

    def bind(self, kernels: Kernels) -> None:
        if self._head_order is not None:
            self._rearrange(self._head_order)
        self._qkv.bind(kernels)
        self._out.bind(kernels)
        self.link()
        weight = self._bind_norms(kernels)
        num_rotated = self._num_keyed_heads if self._positions == "rotary" else 0
        self._self_attend = kernels.self_attention(num_rotated, weight, self._norm_config.eps)

    def link(self) -> None:
        """Cache the operators that are called in every step as attributes."""
        self.project = self._out.forward

    def mix(self, index: int, x: torch.Tensor, tables: RotaryTables, attention: Attention) -> torch.Tensor:
        """Compute attention of x [T, C]: the weighted values of each token [T, H D]."""
        qkv = self._qkv.forward(x)  # [T, (H + 2 G) D]
        for normalize in self._normalize:
            normalize(qkv)
        if self._positions == "temperature":
            (factors,) = tables
            qkv[:, : self._query_width].mul_(factors)
        return self._self_attend(attention, index, qkv, tables)

    def _rearrange(self, order: torch.Tensor) -> None:
        """Permute queries and keys head by head; values stay unchanged."""
        head_dim, num_all = self._config.head_dim, self._config.num_heads + 2 * self._config.num_kv_heads
        rows = torch.arange(num_all * head_dim).view(num_all, head_dim)  # [heads, D]
        rows[: self._num_keyed_heads] = rows[: self._num_keyed_heads, order]
        self._qkv.reorder(rows.flatten())
        order = order.to(self._norm_weight.device)
        self._norm_weight = self._norm_weight[:, order].contiguous()
        if self._head_norms is not None:
            self._head_norms = self._head_norms[:, order]

    def _bind_norms(self, kernels: Kernels) -> torch.Tensor | None:
        """Bind the norms that `_self_attend` cannot include. Return the weight of the norm that it includes, if any."""
        if self._qk_norm is None:
            return None
        eps, num_heads = self._norm_config.eps, self._config.num_heads
        if self._head_norms is not None:
            self._norm_weight[:num_heads] = self._head_norms[0]
            self._norm_weight[num_heads:] = self._head_norms[1]
        weight = self._norm_weight + (0.0 if self._qk_norm == "weightless" else self._norm_config.offset)
        if self._qk_norm != "width":
            if self._positions != "temperature":
                return weight
            self._normalize = [kernels.norm_heads(weight, eps)]  # before queries are scaled by their temperature
        elif not self._shard.is_whole:
            self._normalize = [_norm_across(weight.flatten(), eps, self._whole, self._shard)]
        else:
            width, last = self._query_width, self._num_keyed_heads * self._config.head_dim
            of_queries = kernels.norm_heads(weight[:num_heads].reshape(1, -1), eps)
            of_keys = kernels.norm_heads(weight[num_heads:].reshape(1, -1), eps)
            self._normalize = [of_queries, lambda qkv: of_keys(qkv[:, width:last])]
        return None


def _head_cuts(config: AttentionConfig, shard: Shard) -> tuple[ShardSlice | None, ShardSlice | None, ShardSlice | None]:
    """Return this rank's rows of the query, key and value matrices."""
    queries, keys = (scaled(span, config.head_dim) for span in shard.heads(config))
    of_queries = shard.cut(0, config.num_heads * config.head_dim, queries)
    of_keys = shard.cut(0, config.num_kv_heads * config.head_dim, keys)
    return of_queries, of_keys, of_keys


def _fused(cuts: tuple[ShardSlice | None, ...]) -> ShardSlice | None:
    """Return the cut of the fused matrix."""
    spans: list[Span] = []
    total = 0
    for cut in cuts:
        if cut is None:
            return None
        spans += [scaled(span, 1, total) for span in cut.spans]
        total += cut.total
    return ShardSlice(0, tuple(spans), total)


def _norm_across(
    weight: torch.Tensor, eps: float, config: AttentionConfig, shard: Shard
) -> Callable[[torch.Tensor], None]:
    """Normalize queries and keys by the root mean square over all heads of all ranks; weight float32 [heads D]. Ranks
    that hold the same keys each count their part of them."""
    own = shard.of_attention(config)
    width, last = own.num_heads * own.head_dim, len(weight)
    num_copies = own.num_kv_heads * shard.size // config.num_kv_heads
    sizes = torch.tensor([config.num_heads, config.num_kv_heads * num_copies], device=weight.device) * config.head_dim

    def norm(qkv: torch.Tensor) -> None:
        exact = qkv[:, :last].float()  # [T, heads D]
        queries, keys = exact[:, :width], exact[:, width:]
        squares = torch.stack((queries.square().sum(-1), keys.square().sum(-1)), 1)  # [T, 2]
        factors = shard.all_reduce(squares).div_(sizes).add_(eps).rsqrt_()
        queries.mul_(factors[:, :1])
        keys.mul_(factors[:, 1:])
        qkv[:, :last] = exact.mul_(weight)

    return norm
