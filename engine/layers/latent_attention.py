"""Multi-head latent attention: one latent and one rotated key per token are cached for all heads.

A head's keys and values are linear maps of the latent. The query is multiplied by its key's map, attends to the
latents, and the mixed latents are multiplied by the value's map. The kernel sees one KV head whose keys are latent and
rotated part concatenated, and whose values are the latents.

Letters: T tokens, C channels, H query heads, R latent rank, P plain and S rotary size of a query head, V value size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.checkpoints.shard_slice import Destination, ShardSlice
from engine.kernels.interface import Attention, Operator, RotaryTables, Rotate
from engine.kernels.reference import Kernels
from engine.layers.config import AttentionConfig, LatentConfig, NormConfig
from engine.layers.linear import Linear
from engine.layers.norm import Norm
from engine.layers.shard import WHOLE, Shard, scaled


class LatentAttention:
    """Projections around a kernel of shape (H heads, 1 KV head, R + S, values R). `head_order` [S] as in
    SelfAttention, of the rotated part. A rank has its `shard` of the heads and all latents."""

    sinks: torch.Tensor | None = None

    def __init__(
        self,
        config: AttentionConfig,
        latent: LatentConfig,
        head_order: torch.Tensor | None,
        num_channels: int,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard = WHOLE,
    ) -> None:
        heads, num_all = shard.span(config.num_heads), config.num_heads
        config = shard.of_attention(config)
        self._latent, self._num_heads, self._head_order = latent, config.num_heads, head_order
        head_width = latent.plain_dim + latent.rotary_dim

        def cut(dim: int, size: int) -> ShardSlice | None:
            return shard.cut(dim, num_all * size, scaled(heads, size))

        query_width, query_cut = config.num_heads * head_width, cut(0, head_width)
        norm, bias = NormConfig(eps=latent.eps), config.has_bias
        self._query_down: Linear | None = None
        self._query_norm: Norm | None = None
        if latent.query_rank is None:
            cuts = {"q_proj": query_cut}
            self._query = Linear({"q_proj": query_width}, num_channels, False, dtype, device, cuts)
        else:
            self._query_down = Linear({"q_a_proj": latent.query_rank}, num_channels, bias, dtype, device)
            self._query_norm = Norm(norm, latent.query_rank, dtype, device)
            cuts = {"q_b_proj": query_cut}
            self._query = Linear({"q_b_proj": query_width}, latent.query_rank, False, dtype, device, cuts)
        down = {"kv_a_proj_with_mqa": latent.rank + latent.rotary_dim}
        self._kv_down = Linear(down, num_channels, bias, dtype, device)
        self._kv_norm = Norm(norm, latent.rank, dtype, device)
        up_width = latent.plain_dim + latent.value_dim
        up = {"kv_b_proj": config.num_heads * up_width}
        self._kv_up = Linear(up, latent.rank, False, dtype, device, {"kv_b_proj": cut(0, up_width)})
        output_width, has_bias = config.num_heads * latent.value_dim, config.has_output_bias and shard.is_first
        out_cuts = {"o_proj": cut(1, latent.value_dim)}
        self._out = Linear({"o_proj": num_channels}, output_width, has_bias, dtype, device, out_cuts)
        self._rotate: Rotate  # [T, (H + 1) S], queries' rotated parts and the key's
        self._to_latent: Operator  # [T, H P] -> [T, H R]
        self._from_latent: Operator  # [T, H R] -> [T, H V]

    @property
    def linears(self) -> tuple[Linear, ...]:
        first = () if self._query_down is None else (self._query_down,)
        return (*first, self._query, self._kv_down, self._kv_up, self._out)

    def destinations(self, prefix: str) -> Iterator[tuple[str, Destination]]:
        for linear in self.linears:
            yield from linear.destinations(prefix)
        if self._query_norm is not None:
            yield from self._query_norm.destinations(f"{prefix}q_a_layernorm")
        yield from self._kv_norm.destinations(f"{prefix}kv_a_layernorm")

    def bind(self, kernels: Kernels) -> None:
        latent, num_heads = self._latent, self._num_heads
        self._rotate = kernels.rotation(num_heads + 1)
        self._rearrange()
        maps = self._kv_up.take().view(num_heads, latent.plain_dim + latent.value_dim, latent.rank)  # [H, P + V, R]
        to_keys, to_values = maps.split((latent.plain_dim, latent.value_dim), 1)
        self._to_latent = kernels.linear_per_head(to_keys.contiguous())  # [H, P, R]
        self._from_latent = kernels.linear_per_head(to_values.transpose(1, 2).contiguous())  # [H, R, V]
        for linear in self.linears:
            if linear is not self._kv_up:
                linear.bind(kernels)
        for norm in (self._query_norm, self._kv_norm):
            if norm is not None:
                norm.bind(kernels)

    def mix(self, index: int, x: torch.Tensor, tables: RotaryTables, attention: Attention) -> torch.Tensor:
        """Compute attention of x [T, C]: the mixed latents of each token [T, H R]."""
        latent, num_heads = self._latent, self._num_heads
        if self._query_down is None or self._query_norm is None:
            query = self._query.forward(x)  # [T, H (P + S)], plain parts of all heads first
        else:
            query = self._query.forward(self._query_norm.forward(self._query_down.forward(x).float()))
        kv = self._kv_down.forward(x)  # [T, R + S]
        plain = num_heads * latent.plain_dim
        rotated = torch.cat((query[:, plain:], kv[:, latent.rank :]), 1)  # [T, (H + 1) S]
        self._rotate(rotated, tables)
        heads = x.new_empty(x.shape[0], num_heads + 1, latent.rank + latent.rotary_dim)  # [T, H + 1, R + S]
        to_latent = self._to_latent(query[:, :plain].contiguous())
        heads[:, :-1, : latent.rank] = to_latent.view(-1, num_heads, latent.rank)
        heads[:, -1, : latent.rank] = self._kv_norm.forward(kv[:, : latent.rank].float())
        heads[:, :, latent.rank :] = rotated.view(-1, num_heads + 1, latent.rotary_dim)
        return attention.attend(index, heads.flatten(1))

    def project(self, mixed: torch.Tensor) -> torch.Tensor:
        """[T, H R] -> [T, C]."""
        return self._out.forward(self._from_latent(mixed))

    def _rearrange(self) -> None:
        """Place the plain parts of all heads before all rotated parts, the latter in halves."""
        plain_dim, width = self._latent.plain_dim, self._latent.plain_dim + self._latent.rotary_dim
        order = torch.arange(self._latent.rotary_dim) if self._head_order is None else self._head_order  # [S]
        rows = torch.arange(self._num_heads * width).view(self._num_heads, width)  # [H, P + S]
        plain, rotary = rows[:, :plain_dim].flatten(), rows[:, plain_dim:][:, order].flatten()
        self._query.reorder(torch.cat((plain, rotary)))
        self._kv_down.reorder(torch.cat((torch.arange(self._latent.rank), self._latent.rank + order)))
