"""Self-attention of one layer, around the kernel that keeps keys and values: projections, norms, positions.

Knows a checkpoint's names for its parts. How far a layer reaches and what is kept of a token is the kernel's affair.

Letters: T tokens, C channels, H query heads, G KV heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from engine.kernels.interface import Attention, Facts, Kernels, Operator, Place
from engine.layers.config import AttentionConfig, NormConfig
from engine.layers.linear import Linear


class SelfAttention:
    """Queries, keys and values from one fused matrix.

    `qk_norm` is head, width, weightless or None; `positions` rotary, temperature or None. `head_order` [D], if given,
    rearranges each head of queries and keys, weights and norms alike: see `engine.models.rope.head_order`.
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
    ) -> None:
        self._config, self._norm_config, self._qk_norm = config, norm, qk_norm
        self._positions, self._head_order = positions, head_order
        self._query_width, kv_width = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        widths = (self._query_width, kv_width, kv_width)
        parts = dict(zip(names, widths, strict=True)) if len(names) == len(widths) else {names[0]: sum(widths)}
        self._qkv = Linear(parts, num_channels, config.has_bias, dtype, device)
        self._out = Linear({"o_proj": num_channels}, self._query_width, config.has_output_bias, dtype, device)
        # Weights of the norms of queries and keys, float32 [heads, D], heads of both in a row, each where its part is.
        self._num_keyed_heads = config.num_heads + config.num_kv_heads
        self._norm_weight = torch.ones(self._num_keyed_heads, config.head_dim, device=device)
        self._head_norms = torch.empty(2, config.head_dim, device=device) if qk_norm == "head" else None
        self.sinks = torch.empty(config.num_heads, device=device) if config.has_sinks else None  # float32 [H]
        self._place: Place | None = None
        self._normalise: list[Callable[[torch.Tensor], None]] = []

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._qkv, self._out

    def destinations(self, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._qkv.destinations(prefix)
        yield from self._out.destinations(prefix)
        if self._head_norms is not None:
            yield f"{prefix}q_norm.weight", self._head_norms[0]
            yield f"{prefix}k_norm.weight", self._head_norms[1]
        if self._qk_norm == "width":
            yield f"{prefix}q_norm.weight", self._norm_weight[: self._config.num_heads].view(-1)
            yield f"{prefix}k_norm.weight", self._norm_weight[self._config.num_heads :].view(-1)
        if self.sinks is not None:
            yield f"{prefix}sinks", self.sinks

    def bind(self, kernels: Kernels) -> None:
        if self._head_order is not None:
            self._rearrange(self._head_order)
        self._qkv.bind(kernels)
        self._out.bind(kernels)
        self.link()
        self._bind_norms(kernels)
        width = self._query_width
        if self._positions == "rotary":
            self._place = kernels.rotation(self._num_keyed_heads)
        elif self._positions == "temperature":
            self._place = lambda qkv, facts: qkv[:, :width].mul_(facts[0])

    def link(self) -> None:
        """Keep what is called every step where it is found at once."""
        self.project = self._out.forward

    def mix(self, index: int, x: torch.Tensor, facts: Facts, attention: Attention) -> torch.Tensor:
        """x [T, C] -> each token's mix of values [T, H D]."""
        qkv = self._qkv.forward(x)  # [T, (H + 2 G) D]
        for normalise in self._normalise:
            normalise(qkv)
        if self._place is not None:
            self._place(qkv, facts)
        return attention.attend(index, qkv)

    def _rearrange(self, order: torch.Tensor) -> None:
        """Queries and keys head by head; values stay as they are."""
        head_dim, num_all = self._config.head_dim, self._config.num_heads + 2 * self._config.num_kv_heads
        rows = torch.arange(num_all * head_dim).view(num_all, head_dim)  # [heads, D]
        rows[: self._num_keyed_heads] = rows[: self._num_keyed_heads, order]
        self._qkv.reorder(rows.flatten())
        self._norm_weight = self._norm_weight[:, order].contiguous()
        if self._head_norms is not None:
            self._head_norms = self._head_norms[:, order]

    def _bind_norms(self, kernels: Kernels) -> None:
        if self._qk_norm is None:
            return
        eps, num_heads = self._norm_config.eps, self._config.num_heads
        if self._head_norms is not None:
            self._norm_weight[:num_heads] = self._head_norms[0]
            self._norm_weight[num_heads:] = self._head_norms[1]
        weight = self._norm_weight + (0.0 if self._qk_norm == "weightless" else self._norm_config.offset)
        if self._qk_norm != "width":
            self._normalise = [kernels.norm_heads(weight, eps)]
            return
        width, last = self._query_width, self._num_keyed_heads * self._config.head_dim
        of_queries = kernels.norm_heads(weight[:num_heads].reshape(1, -1), eps)
        of_keys = kernels.norm_heads(weight[num_heads:].reshape(1, -1), eps)
        self._normalise = [of_queries, lambda qkv: of_keys(qkv[:, width:last])]
