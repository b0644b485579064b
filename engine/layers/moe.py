"""A mixture of experts: a router selects a few experts per token, whose outputs are added with weights.

Knows a checkpoint's names for the parts. The kernels decide how tokens are grouped by expert.

Letters: T tokens, C channels, E experts, K selected experts per token, I inner channels of an expert.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import torch

from engine.checkpoints.shard_slice import Destination, destination_for
from engine.kernels.interface import ExpertMatrices, MixExperts
from engine.kernels.reference import Kernels
from engine.layers.config import MoeConfig, RouterConfig
from engine.layers.feed_forward import Mlp
from engine.layers.linear import Linear
from engine.layers.shard import WHOLE, Shard


class Router:
    """x [T, C] -> weights float32 [T, K] and experts int64 [T, K]. Scores are float32 whatever the model's dtype."""

    def __init__(
        self, config: RouterConfig, name: str, num_experts: int, num_channels: int, device: torch.device
    ) -> None:
        self._config, self._name = config, name
        self._linear = Linear({name: num_experts}, num_channels, config.has_bias, torch.float32, device)
        self._correction = torch.empty(num_experts, device=device) if config.has_correction else None  # float32 [E]

    def destinations(self, prefix: str) -> Iterator[tuple[str, Destination]]:
        yield from self._linear.destinations(prefix)
        if self._correction is not None:
            yield f"{prefix}{self._name}.e_score_correction_bias", self._correction

    def bind(self, kernels: Kernels) -> None:
        self._linear.bind(kernels)

    def choose(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        config = self._config
        logits = self._linear.forward(x.float())  # [T, E]
        scores = logits.sigmoid() if config.score == "sigmoid" else logits.softmax(-1)
        # Without a correction, logits rank like scores and do not tie where scores are nearly 0 or 1.
        ranked = logits if self._correction is None else scores + self._correction
        if config.num_groups > 1:
            ranked = self._within_best_groups(ranked)
        experts = ranked.topk(config.num_chosen, -1).indices  # [T, K]
        weights = scores.gather(1, experts)  # [T, K]
        if config.is_normalized:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * config.scale, experts

    def _within_best_groups(self, ranked: torch.Tensor) -> torch.Tensor:
        """Return [T, E] with -inf outside each token's best groups."""
        config = self._config
        groups = ranked.unflatten(1, (config.num_groups, -1))  # [T, groups, E / groups]
        group_scores = groups.topk(config.num_group_leaders, -1).values.sum(-1)  # [T, groups]
        chosen = group_scores.topk(config.num_chosen_groups, -1).indices
        is_hidden = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, chosen, False)
        return groups.masked_fill(is_hidden.unsqueeze(-1), float("-inf")).flatten(1)


class Experts:
    """The matrices of all experts, [E, 2 I, C] and [E, C, I], and their biases.

    A checkpoint has one tensor per expert and part, or one for all experts in this layout or, if the family
    `is_stacked`, transposed. A rank has a range of the experts and returns the sums over those.
    """

    def __init__(
        self, config: MoeConfig, num_channels: int, dtype: torch.dtype, device: torch.device, shard: Shard = WHOLE
    ) -> None:
        self._config, self._span = config, shard.span(config.num_experts)
        self._cut = shard.cut(0, config.num_experts, self._span)
        num_experts = self._span[1] - self._span[0]
        width = config.inner * (2 if config.activation.is_gated else 1)
        self.shapes = ((width, num_channels), (num_channels, config.inner))  # shapes of one expert's matrices
        self._up = torch.empty(num_experts, width, num_channels, dtype=dtype, device=device)
        self._down = torch.empty(num_experts, num_channels, config.inner, dtype=dtype, device=device)
        has_bias = config.has_bias
        self._up_bias = torch.empty(num_experts, width, dtype=dtype, device=device) if has_bias else None
        self._down_bias = torch.empty(num_experts, num_channels, dtype=dtype, device=device) if has_bias else None
        self.mix: MixExperts  # exists after `bind`

    def destinations(self, prefix: str, stored: Container[str]) -> Iterator[tuple[str, Destination]]:
        names, inner = self._config.names, self._config.inner
        fused = f"{prefix}experts.gate_up_proj"
        if names.is_stacked or fused in stored:
            up, down = self._up, self._down
            if names.is_stacked:
                up, down = up.transpose(1, 2), down.transpose(1, 2)
            yield fused, destination_for(up, self._cut)
            yield f"{prefix}experts.down_proj", destination_for(down, self._cut)
            if self._up_bias is not None and self._down_bias is not None:
                yield f"{fused}_bias", destination_for(self._up_bias, self._cut)
                yield f"{prefix}experts.down_proj_bias", destination_for(self._down_bias, self._cut)
            return
        for index, number in enumerate(range(*self._span)):
            expert = f"{prefix}experts.{number}."
            yield f"{expert}{names.gate}.weight", self._up[index, :inner]
            yield f"{expert}{names.up}.weight", self._up[index, inner:]
            yield f"{expert}{names.down}.weight", self._down[index]

    def bind(self, kernels: Kernels) -> None:
        """Pass the matrices to the device's operators; this layer no longer holds them."""
        if self._config.names.is_interleaved:
            self._up = _halves(self._up)
            self._up_bias = None if self._up_bias is None else _halves(self._up_bias)
        config, biases = self._config, (self._up_bias, self._down_bias)
        matrices = ExpertMatrices(
            self._up,
            self._down,
            *biases,
            config.activation,
            config.num_experts,
            self._span[0],
            config.is_input_weighted,
        )
        self.mix = kernels.experts(matrices)
        self._up, self._down = self._up.new_empty(0), self._down.new_empty(0)


class Moe:
    """Router, experts and, if there is one, the shared expert. Every rank runs the router; the output is this rank's
    part of the all_reduce."""

    def __init__(
        self, config: MoeConfig, num_channels: int, dtype: torch.dtype, device: torch.device, shard: Shard = WHOLE
    ) -> None:
        self._config, names = config, config.names
        self._router = Router(config.router, names.router, config.num_experts, num_channels, device)
        self._experts = Experts(config, num_channels, dtype, device, shard)
        self._shared: Mlp | None = None
        self._shared_gate: Linear | None = None
        if config.shared is not None:
            up = ("gate_proj", "up_proj")
            self._shared = Mlp(config.shared, up, "down_proj", num_channels, dtype, device, shard)
            if config.is_shared_gated:
                self._shared_gate = Linear({f"{names.shared}_gate": 1}, num_channels, False, dtype, device)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        return self._experts.shapes

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Return the linear maps of the shared expert."""
        return () if self._shared is None else self._shared.linears

    def destinations(self, prefix: str, stored: Container[str]) -> Iterator[tuple[str, Destination]]:
        yield from self._router.destinations(prefix)
        yield from self._experts.destinations(prefix, stored)
        if self._shared is not None:
            yield from self._shared.destinations(f"{prefix}{self._config.names.shared}.")
        if self._shared_gate is not None:
            yield from self._shared_gate.destinations(prefix)

    def bind(self, kernels: Kernels) -> None:
        for part in (self._router, self._experts, self._shared, self._shared_gate):
            if part is not None:
                part.bind(kernels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, C] -> float32 [T, C]."""
        mixed = self._experts.mix(x, *self._router.choose(x))
        if self._shared is None:
            return mixed
        shared = self._shared.forward(x)  # [T, C]
        if self._shared_gate is not None:
            shared = shared * self._shared_gate.forward(x).sigmoid()
        return mixed.add_(shared)


def _halves(x: torch.Tensor) -> torch.Tensor:
    """Return [E, 2 I, …] with alternating rows separated: all first ones, then all second ones."""
    return torch.cat((x[:, ::2], x[:, 1::2]), 1)
