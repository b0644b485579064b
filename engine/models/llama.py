"""The Llama decoder: embedding, layers of attention and gated feed-forward, head. Mistral is the same with a window.

Reads top to bottom as the forward pass does. Knows shapes and the checkpoint's names; which operators run, and how keys
and values are kept, is the kernels' affair. Sequences, sampling and processes do not exist here.

Letters: T tokens, K sampled rows, C channels, V vocabulary, H query heads, G KV heads, D head size, I feed-forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from engine.kernels.interface import Attention, AttentionShape, AttentionStep, Kernels, Operator
from engine.layers.embedding import Embedding
from engine.layers.linear import Linear
from engine.layers.norm import RmsNorm
from engine.layers.rotary import Rotary
from engine.models.config import ModelConfig
from engine.models.rope import rope_frequencies


class ModelStep(AttentionStep, Protocol):
    """What a forward pass reads of `engine.inputs.StepInputs`."""

    @property
    def token_ids(self) -> torch.Tensor: ...  # int64 [T]
    @property
    def positions(self) -> torch.Tensor: ...  # int64 [T]
    @property
    def logit_rows(self) -> torch.Tensor: ...  # int64 [K]


class Llama:
    """Weights of one model. Built empty: fill `destinations()`, then `bind`, then `forward`."""

    _head: Operator

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.dtype = dtype
        self.attention_shape = AttentionShape(
            config.num_heads, config.num_kv_heads, config.head_dim, config.sliding_window
        )
        self._embedding = Embedding(config.vocab_size, config.hidden_size, dtype, device)
        self._layers = [LlamaLayer(config, dtype, device) for _ in range(config.num_layers)]
        self._norm = RmsNorm(config.hidden_size, config.rms_norm_eps, dtype, device)
        self._untied_head: Linear | None = None
        if not config.is_head_tied:
            self._untied_head = Linear({"lm_head": config.vocab_size}, config.hidden_size, False, dtype, device)
        self._rotary: Rotary

    def destinations(self) -> dict[str, torch.Tensor]:
        """Every tensor of the checkpoint by name, and where it goes."""
        found: dict[str, torch.Tensor] = dict(self._embedding.destinations("model.embed_tokens"))
        for index, layer in enumerate(self._layers):
            found.update(layer.destinations(f"model.layers.{index}."))
        found.update(self._norm.destinations("model.norm"))
        if self._untied_head is not None:
            found.update(self._untied_head.destinations(""))
        return found

    def linear_shapes(self) -> list[tuple[int, int]]:
        """(out, in) of the matrices of one layer and of the head."""
        head = (self.config.vocab_size, self.config.hidden_size)
        return [linear.shape for linear in self._layers[0].linears] + [head]

    def bind(self, kernels: Kernels, num_positions: int) -> None:
        """Weights are in place: give them to the device's operators, and make the table of positions."""
        for layer in self._layers:
            layer.bind(kernels)
        self._norm.bind(kernels)
        if self._untied_head is None:
            self._head = self._embedding.tied_head(kernels)
        else:
            self._untied_head.bind(kernels)
            self._head = self._untied_head.forward
        frequencies, attention_factor = rope_frequencies(self.config.rope, self.config.head_dim)
        self._rotary = Rotary(frequencies, attention_factor, num_positions, self.dtype)

    def forward(self, step: ModelStep, attention: Attention) -> torch.Tensor:
        """float32 logits [K, V] of the rows that sample; the KV of all T tokens is stored on the way."""
        stream = self._embedding.forward(step.token_ids)  # float32 [T, C]
        positions = self._rotary.at(step.positions)
        attention.begin(step)
        logit_rows = step.logit_rows
        is_every_row_sampled = len(logit_rows) == len(stream)
        for index, layer in enumerate(self._layers):
            mixed = layer.attend(index, stream, positions, attention)  # [T, H D]
            if index + 1 == len(self._layers) and not is_every_row_sampled:  # the rest of T has served its purpose
                if len(logit_rows) == 0:
                    return stream.new_empty(0, self.config.vocab_size)
                mixed, stream = mixed.index_select(0, logit_rows), stream.index_select(0, logit_rows)
            layer.feed_forward(stream, mixed)
        return self._head(self._norm.forward(stream)).float()  # [K, V]


class LlamaLayer:
    """One layer: norm, attention, residual; norm, gated feed-forward, residual."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        channels, query_width = config.hidden_size, config.num_heads * config.head_dim
        kv_width, inner = config.num_kv_heads * config.head_dim, config.intermediate_size
        bias, mlp_bias = config.has_attention_bias, config.has_mlp_bias
        qkv = {"q_proj": query_width, "k_proj": kv_width, "v_proj": kv_width}
        self._qkv = Linear(qkv, channels, bias, dtype, device)
        self._out = Linear({"o_proj": channels}, query_width, bias, dtype, device)
        self._gate_up = Linear({"gate_proj": inner, "up_proj": inner}, channels, mlp_bias, dtype, device)
        self._down = Linear({"down_proj": channels}, inner, mlp_bias, dtype, device)
        self._attention_norm = RmsNorm(channels, config.rms_norm_eps, dtype, device)
        self._feed_forward_norm = RmsNorm(channels, config.rms_norm_eps, dtype, device)
        self._num_rotated_heads = config.num_heads + config.num_kv_heads
        self._kernels: Kernels

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self._qkv, self._out, self._gate_up, self._down

    def destinations(self, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._qkv.destinations(f"{prefix}self_attn.")
        yield from self._out.destinations(f"{prefix}self_attn.")
        yield from self._gate_up.destinations(f"{prefix}mlp.")
        yield from self._down.destinations(f"{prefix}mlp.")
        yield from self._attention_norm.destinations(f"{prefix}input_layernorm")
        yield from self._feed_forward_norm.destinations(f"{prefix}post_attention_layernorm")

    def bind(self, kernels: Kernels) -> None:
        self._kernels = kernels
        for linear in self.linears:
            linear.bind(kernels)
        self._attention_norm.bind(kernels)
        self._feed_forward_norm.bind(kernels)

    def attend(
        self, index: int, stream: torch.Tensor, positions: tuple[torch.Tensor, torch.Tensor], attention: Attention
    ) -> torch.Tensor:
        """stream [T, C] -> each token's mix of values [T, H D]."""
        qkv = self._qkv.forward(self._attention_norm.forward(stream))  # [T, (H + 2 G) D]
        self._kernels.rotate(qkv, *positions, self._num_rotated_heads)
        return attention.attend(index, qkv)

    def feed_forward(self, stream: torch.Tensor, mixed: torch.Tensor) -> None:
        """Add the attention's output and then the feed-forward's to stream [T, C], in place."""
        stream.add_(self._out.forward(mixed))
        gate_up = self._gate_up.forward(self._feed_forward_norm.forward(stream))  # [T, 2 I]
        stream.add_(self._down.forward(self._kernels.gate(gate_up)))
