"""The decoder of all families: embedding, layers of attention and feed-forward, head.

Reads from top to bottom like the forward pass, built from `ModelConfig`. Knows shapes and checkpoint names; the kernels
decide which operators run and how keys and values are stored. Knows no families, sequences, sampling or processes.

Letters: T tokens, K sampled rows, C channels, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from typing import Protocol

import torch

from engine.arrays import ceil_div
from engine.checkpoints.shard_slice import Destination
from engine.kernels.interface import (
    AddInPlace,
    Attention,
    AttentionShape,
    AttentionStep,
    KvPool,
    Operator,
    RotaryTables,
)
from engine.kernels.reference import Kernels
from engine.layers.attention import SelfAttention
from engine.layers.config import MoeConfig
from engine.layers.embedding import Embedding, Head, gathered
from engine.layers.feed_forward import Mlp
from engine.layers.latent_attention import LatentAttention
from engine.layers.linear import Linear, with_linears
from engine.layers.moe import Moe
from engine.layers.norm import NoNorm, Norm
from engine.layers.rotary import Rotary, Temperature
from engine.layers.shard import WHOLE, Shard
from engine.models.config import LayerConfig, ModelConfig, Names, QueryTemperature, RopeConfig, UnsupportedModel
from engine.models.rope import head_order, rope_frequencies

# Prefixes of body and head in checkpoints: alone, or as the text part of a multimodal model.
_ROOTS = (
    ("model.", "lm_head"),
    ("language_model.model.", "language_model.lm_head"),
    ("model.language_model.", "lm_head"),
)


class ModelStep(AttentionStep, Protocol):
    """The fields of `engine.inputs.StepInputs` that a forward pass reads."""

    @property
    def token_ids(self) -> torch.Tensor: ...  # int64 [T]
    @property
    def positions(self) -> torch.Tensor: ...  # int64 [T]
    @property
    def logit_rows(self) -> torch.Tensor: ...  # int64 [K]


class AdaptedLayers(Protocol):
    """Layers from `layers_with`, for steps in which some tokens use an adapter."""

    @property
    def layers(self) -> list[Layer]: ...

    def narrow(self, rows: torch.Tensor) -> None:
        """Keep only these rows of the step's tokens."""


class Decoder:
    """The weights of one model. Created empty: fill `destinations()`, then call `bind`, then `forward`."""

    _head: Operator

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device, shard: Shard = WHOLE) -> None:
        """Raises UnsupportedModel if the model cannot be divided into such shards."""
        fault = shard.fault(config.attention)
        if fault:
            raise UnsupportedModel(fault)
        self.config = config
        self.dtype = dtype
        self._device = device
        self._shard = shard
        self.attention_shape: AttentionShape = replace(
            config, attention=shard.of_attention(config.attention)
        ).attention_shape
        self._embedding = Embedding(config.vocab_size, config.hidden_size, dtype, device, shard)
        kind = ParallelLayer if config.is_parallel else Layer
        self._layers = [kind(config, layer, dtype, device, shard) for layer in config.layers]
        self._norm = Norm(config.norm, config.hidden_size, dtype, device)
        self._untied_head: Head | None = None
        if not config.is_head_tied:
            self._untied_head = Head(config.vocab_size, config.hidden_size, dtype, device, shard)
        # Position tables, and the index of each layer's table.
        self._tables: list[Rotary | Temperature] = []
        self._table_of: list[int | None] = []

    def destinations(self, stored: Container[str] = ()) -> dict[str, Destination]:
        """Return the checkpoint tensors that this rank needs by name, and their destinations.

        `stored` contains the checkpoint's names, which decide between the layouts of a family.
        """
        root, head = next((pair for pair in _ROOTS if f"{pair[0]}embed_tokens.weight" in stored), _ROOTS[0])
        found: dict[str, Destination] = dict(self._embedding.destinations(f"{root}embed_tokens"))
        for index, layer in enumerate(self._layers):
            found.update(layer.destinations(f"{root}layers.{index}.", stored))
        found.update(self._norm.destinations(f"{root}norm"))
        if self._untied_head is not None:
            found.update(self._untied_head.destinations(head))
        return found

    def linear_shapes(self) -> list[tuple[int, int]]:
        """Return (out, in) of the matrices of the last layer and of the head."""
        head = (ceil_div(self.config.vocab_size, self._shard.size), self.config.hidden_size)
        return [*self._layers[-1].linear_shapes, head]

    @property
    def linears(self) -> list[Linear]:
        """Return all linear maps except the experts' and a tied head."""
        head = [] if self._untied_head is None else [self._untied_head]
        return [linear for layer in self._layers for linear in layer.linears] + head

    @property
    def packable(self) -> list[Linear | Embedding]:
        """Return the matrices that may stay packed: linear maps, and an embedding that is also the head."""
        return [*self.linears, *([self._embedding] if self._untied_head is None else [])]

    def bind(self, kernels: Kernels, num_positions: int) -> None:
        """Pass the loaded weights to the device's operators, and create the position tables."""
        for layer in self._layers:
            layer.bind(kernels)
        self._norm.bind(kernels)
        if self._untied_head is None:
            self._head = self._embedding.tied_head(kernels)
        else:
            self._untied_head.bind(kernels)
            self._head = self._untied_head.forward
        if not self._shard.is_whole:
            self._head = gathered(self._head, self._shard, self.config.vocab_size)
        distinct = list(dict.fromkeys(layer.positions for layer in self.config.layers if layer.positions is not None))
        self._tables = [self._table(positions, num_positions) for positions in distinct]
        self._table_of = [
            None if layer.positions is None else distinct.index(layer.positions) for layer in self.config.layers
        ]

    def attention(self, kernels: Kernels, pool: KvPool) -> Attention:
        """Return the attention kernel over `pool`. Call after loading the weights."""
        sinks = [layer.sinks for layer in self._layers if layer.sinks is not None]
        return kernels.attention(pool, self.attention_shape, sinks)

    def sites(self) -> Iterator[tuple[str, Linear]]:
        """Yield the linear maps that adapters can change, with the prefix of their names (`layers.0.self_attn.`)."""
        for index, layer in enumerate(self._layers):
            yield from layer.sites(f"layers.{index}.")

    def layers_with(self, change: Callable[[Linear], Linear]) -> list[Layer]:
        """Return copies of the layers with the same weights and other linear maps, for `forward`."""
        return [with_linears(layer, change) for layer in self._layers]

    def forward(self, step: ModelStep, attention: Attention, adapted: AdaptedLayers | None = None) -> torch.Tensor:
        """Return float32 logits [K, V] of the sampled rows on the leading rank, and store the KV of all T tokens."""
        stream = self._embedding.forward(step.token_ids)  # float32 [T, C]
        if self.config.embedding_multiplier != 1:
            stream.mul_(self.config.embedding_multiplier)
        tables: list[RotaryTables] = [table.at(step.positions) for table in self._tables]
        attention.begin(step)
        logit_rows = step.logit_rows
        layers = self._layers if adapted is None else adapted.layers
        num_sampled, last = logit_rows.shape[0], len(layers) - 1
        is_every_row_sampled = num_sampled == stream.shape[0]
        for index, (layer, table) in enumerate(zip(layers, self._table_of, strict=True)):
            mixed = layer.attend(index, stream, () if table is None else tables[table], attention)  # [T, H ·]
            if index == last and not is_every_row_sampled:  # other rows are no longer needed
                if num_sampled == 0:
                    return stream.new_empty(0, self.config.vocab_size)
                mixed, stream = mixed.index_select(0, logit_rows), stream.index_select(0, logit_rows)
                if adapted is not None:
                    adapted.narrow(logit_rows)
            layer.feed_forward(stream, mixed)
        return self._logits(self._norm.forward(stream))  # [K, V]

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        """[K, C] -> float32 [K, V]."""
        logits, cap = self._head(x).float(), self.config.logit_softcap
        if self.config.logit_multiplier != 1:
            logits = logits * self.config.logit_multiplier
        return logits if cap is None else logits.div(cap).tanh_().mul_(cap)

    def _table(self, positions: RopeConfig | QueryTemperature, num_positions: int) -> Rotary | Temperature:
        if isinstance(positions, QueryTemperature):
            return Temperature(positions.rate, positions.interval, num_positions, self.dtype, self._device)
        head_dim = self.config.rotated_head_dim
        frequencies, attention_factor = rope_frequencies(positions, head_dim, num_positions)
        return Rotary(frequencies, attention_factor, head_dim, num_positions, self.dtype, self._device)


class Layer:
    """One layer: attention and then feed-forward, each added to the stream, with norms before, after or both."""

    def __init__(
        self,
        config: ModelConfig,
        layer: LayerConfig,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard = WHOLE,
    ) -> None:
        self._shard = shard
        self._names: Names = config.names
        self._output: Operator  # [T, H ·] -> [T, C], the attention's output
        self._feed: Operator  # [T, C] -> [T, C], the feed-forward's output
        self._add: AddInPlace
        self._residual_multiplier = config.residual_multiplier
        self._attention = _attention(config, layer, dtype, device, shard)
        self._feed_forward: Mlp | Moe
        if isinstance(layer.feed_forward, MoeConfig):
            self._feed_forward = Moe(layer.feed_forward, config.hidden_size, dtype, device, shard)
        else:
            names, size = config.names, config.hidden_size
            self._feed_forward = Mlp(layer.feed_forward, names.gate_up, names.down, size, dtype, device, shard)

        def before(name: str | None) -> Norm | NoNorm:
            return Norm(config.norm, config.hidden_size, dtype, device) if name else NoNorm(dtype)

        def after(name: str | None) -> Norm | None:
            return Norm(config.norm, config.hidden_size, dtype, device, out_dtype=torch.float32) if name else None

        self._before_attention = before(config.names.before_attention)
        self._after_attention = after(config.names.after_attention)
        self._before_feed_forward = before(config.names.before_feed_forward)
        self._after_feed_forward = after(config.names.after_feed_forward)

    @property
    def sinks(self) -> torch.Tensor | None:
        return self._attention.sinks

    @property
    def linear_shapes(self) -> list[tuple[int, int]]:
        attention = [linear.shape for linear in self._attention.linears]
        if isinstance(self._feed_forward, Moe):
            return [*attention, *self._feed_forward.shapes]
        return attention + [linear.shape for linear in self._feed_forward.linears]

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Return all linear maps except a mixture's experts and router."""
        return (*self._attention.linears, *self._feed_forward.linears)

    def destinations(self, prefix: str, stored: Container[str]) -> Iterator[tuple[str, Destination]]:
        names = self._names
        yield from self._attention.destinations(f"{prefix}self_attn.")
        if isinstance(self._feed_forward, Moe):
            mixture = names.mixture if f"{prefix}mlp.gate.weight" not in stored else "mlp"
            yield from self._feed_forward.destinations(f"{prefix}{mixture}.", stored)
        else:
            yield from self._feed_forward.destinations(f"{prefix}{names.feed_forward}.")
        for name, norm in (
            (names.before_attention, self._before_attention),
            (names.after_attention, self._after_attention),
            (names.before_feed_forward, self._before_feed_forward),
            (names.after_feed_forward, self._after_feed_forward),
        ):
            if norm is not None:
                yield from norm.destinations(f"{prefix}{name}")

    def bind(self, kernels: Kernels) -> None:
        for part in (self._attention, self._feed_forward, self._before_attention, self._before_feed_forward):
            part.bind(kernels)
        for norm in (self._after_attention, self._after_feed_forward):
            if norm is not None:
                norm.bind(kernels)
        self._add = kernels.add(self._residual_multiplier)
        self.link()

    def link(self) -> None:
        """Build the operators that are called in every step."""
        self._output, self._feed = self._attention.project, self._feed_forward.forward
        if not self._shard.is_whole:
            self._reduce_outputs()
        if self._after_attention is not None:
            self._output = _then(self._output, self._after_attention)
        if self._after_feed_forward is not None:
            self._feed = _then(self._feed, self._after_feed_forward)

    def sites(self, prefix: str) -> Iterator[tuple[str, Linear]]:
        """Yield the linear maps that adapters can change, with the prefix of their parts' names; not experts' maps or
        maps with other operators."""
        yield from ((f"{prefix}self_attn.", linear) for linear in self._attention.linears if hasattr(linear, "forward"))
        if not isinstance(self._feed_forward, Moe):
            yield from ((f"{prefix}{self._names.feed_forward}.", linear) for linear in self._feed_forward.linears)

    def _reduce_outputs(self) -> None:
        """Apply all_reduce to the ranks' outputs before any other operation."""
        self._output, self._feed = _all_reduced(self._output, self._shard), _all_reduced(self._feed, self._shard)

    def attend(self, index: int, stream: torch.Tensor, tables: RotaryTables, attention: Attention) -> torch.Tensor:
        """Compute attention of stream [T, C]: the weighted values of each token [T, H ·]."""
        return self._attention.mix(index, self._before_attention.forward(stream), tables, attention)

    def feed_forward(self, stream: torch.Tensor, mixed: torch.Tensor) -> None:
        """Add the attention's output and then the feed-forward's to stream [T, C], in place."""
        self._add(stream, self._output(mixed))
        self._add(stream, self._feed(self._before_feed_forward.forward(stream)))


class ParallelLayer(Layer):
    """Attention and feed-forward read the same normalized stream, and both are added to it."""

    def feed_forward(self, stream: torch.Tensor, mixed: torch.Tensor) -> None:
        fed = self._feed(self._before_attention.forward(stream))
        if not self._shard.is_whole:
            self._add(stream, self._shard.all_reduce(fed + self._output(mixed)))
            return
        self._add(stream, self._output(mixed))
        self._add(stream, fed)

    def _reduce_outputs(self) -> None:
        """Apply one all_reduce to the sum of both."""


def _then(operator: Operator, norm: Norm) -> Operator:
    return lambda x: norm.forward(operator(x).float())


def _all_reduced(operator: Operator, shard: Shard) -> Operator:
    return lambda x: shard.all_reduce(operator(x))


def _attention(
    config: ModelConfig, layer: LayerConfig, dtype: torch.dtype, device: torch.device, shard: Shard
) -> SelfAttention | LatentAttention:
    order, kind = None, None
    if isinstance(layer.positions, RopeConfig):
        order, kind = head_order(layer.positions, config.rotated_head_dim), "rotary"
    elif layer.positions is not None:
        kind = "temperature"
    attention, size = config.attention, config.hidden_size
    if attention.latent is not None:
        return LatentAttention(attention, attention.latent, order, size, dtype, device, shard)
    names, norm, qk_norm = config.names.qkv, config.norm, layer.qk_norm
    return SelfAttention(attention, names, norm, qk_norm, kind, order, size, dtype, device, shard)
