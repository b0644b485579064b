"""The decoder of all families: embedding, layers of attention and feed-forward, head.

Reads from top to bottom like the forward pass, built from `ModelConfig`. Knows shapes and checkpoint names; the kernels
decide which operators run and how keys and values are stored. Knows no families, sequences, sampling or processes.

Letters: T tokens, K sampled rows, C channels, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from typing import Protocol, cast

import torch

from engine.arrays import Floats, Ints, Longs, ceil_div
from engine.checkpoints.shard_slice import Destination
from engine.checkpoints.weights import Checkpoint
from engine.kernels.interface import (
    FLOAT8,
    AddInPlace,
    AddNorm,
    Attention,
    AttentionShape,
    AttentionStep,
    KvPool,
    NormConstants,
    Operator,
    RotaryTables,
)
from engine.kernels.mutual_attention import with_mutual_attention
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
from engine.models.kv_scales import read_kv_scales
from engine.models.rope import head_order, rope_frequencies

# Prefixes of body and head in checkpoints: alone, or as the text part of a multimodal model.
_ROOTS = (
    ("model.", "lm_head"),
    ("language_model.model.", "language_model.lm_head"),
    ("model.language_model.", "lm_head"),
)


class ImageTokens(Protocol):
    """Tokens of images, with the vectors that replace their embeddings."""

    @property
    def rows(self) -> Longs: ...  # [N]
    @property
    def embeddings(self) -> Floats: ...  # [N, C]
    @property
    def mutual(self) -> Ints | None: ...  # [M, 2], spans of tokens that see each other


class ModelStep(Protocol):
    """The fields of `engine.inputs.StepInputs` and `engine.device_steps.DeviceStep` that a forward pass reads. The step
    is also one that the attention accepts."""

    @property
    def token_ids(self) -> torch.Tensor: ...  # int64 [T]
    @property
    def positions(self) -> torch.Tensor: ...  # int64 [T]
    @property
    def logit_rows(self) -> torch.Tensor: ...  # int64 [K]
    @property
    def needs_every_logit(self) -> bool: ...  # True if `logit_rows` are all tokens in order
    @property
    def images(self) -> ImageTokens | None: ...
    @property
    def axis_positions(self) -> torch.Tensor | None: ...  # int64 [3, T]; None: `positions` on each axis


class AdaptedLayers(Protocol):
    """Layers from `layers_with`, for steps in which some tokens use an adapter."""

    @property
    def layers(self) -> list[Layer]: ...

    def narrow(self) -> None:
        """Continue with the sampled rows of the step's tokens."""


class Decoder:
    """The weights of one model. Created empty: fill `destinations()`, then call `bind` and
    `make_position_tables`, then `forward`."""

    _head: Operator

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device, shard: Shard = WHOLE) -> None:
        """Raises UnsupportedModel if the model cannot be divided into such shards."""
        fault = shard.fault(config.attention)
        if fault:
            raise UnsupportedModel(fault)
        self.config = config
        self.dtype = dtype
        self.device = device
        self._shard = shard
        self.attention_shape: AttentionShape = replace(
            config, attention=shard.of_attention(config.attention)
        ).attention_shape
        self._embedding = Embedding(
            config.vocab_size, config.hidden_size, dtype, device, shard, config.embedding_multiplier
        )
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
        root, head = _root_and_head(stored)
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

    def bind(self, kernels: Kernels) -> None:
        """Pass the loaded weights to the device's operators."""
        for layer in self._layers:
            layer.bind(kernels)
        # Each layer adds its output to the stream and normalizes the stream for the next layer in one operator.
        norms = [*(layer.input_norm() for layer in self._layers), self._norm.constants()]
        for layer, norm in zip(self._layers, norms[1:], strict=True):
            layer.bind_norms(kernels, norm)
        if self._untied_head is None:
            self._head = self._embedding.tied_head(kernels)
        else:
            self._untied_head.bind(kernels)
            self._head = self._untied_head.forward
        self._embedding.bind(kernels, norms[0])
        if not self._shard.is_whole:
            self._head = gathered(self._head, self._shard, self.config.vocab_size)

    def make_position_tables(self, kernels: Kernels, num_positions: int) -> None:
        """Create the tables of positions 0 … `num_positions` - 1 on the device."""
        distinct = list(dict.fromkeys(layer.positions for layer in self.config.layers if layer.positions is not None))
        self._tables = [self._table(positions, num_positions, kernels) for positions in distinct]
        self._table_of = [
            None if layer.positions is None else distinct.index(layer.positions) for layer in self.config.layers
        ]

    def attention(self, kernels: Kernels, pool: KvPool) -> Attention:
        """Return the attention kernel over `pool`. Call after loading the weights."""
        sinks = [layer.sinks for layer in self._layers if layer.sinks is not None]
        return kernels.attention(pool, self.attention_shape, sinks)

    def kv_scales(self, checkpoint: Checkpoint) -> torch.Tensor:
        """Return the scales of this rank's keys and values as 8-bit floats, float32 [L, planes, G] on the host.

        Raises WeightsError.
        """
        attention, num_planes = self.config.attention, self.attention_shape.num_planes
        num_all, (first, last) = attention.num_kv_heads, self._shard.heads(attention)[1]
        if attention.latent is not None:
            num_all, first, last = 1, 0, 1
        prefixes = [f"{_root_and_head(checkpoint)[0]}layers.{index}.self_attn." for index in range(len(self._layers))]
        scales = [read_kv_scales(checkpoint, prefix, num_planes, num_all)[:, first:last] for prefix in prefixes]
        return torch.stack(scales)

    def sites(self) -> Iterator[tuple[str, Linear]]:
        """Yield the linear maps that adapters can change, with the prefix of their names (`layers.0.self_attn.`)."""
        for index, layer in enumerate(self._layers):
            yield from layer.sites(f"layers.{index}.")

    def layers_with(self, change: Callable[[Linear], Linear]) -> list[Layer]:
        """Return copies of the layers with the same weights and other linear maps, for `forward`."""
        return [with_linears(layer, change) for layer in self._layers]

    def forward(
        self,
        step: ModelStep,
        attention: Attention,
        adapted: AdaptedLayers | None = None,
        *,
        keeps_dtype: bool = False,
    ) -> torch.Tensor:
        """Return float32 logits [K, V] of the sampled rows on the leading rank, and store the KV of all T tokens.

        With `keeps_dtype`, the logits have the head's type, which holds the same values in less memory.
        """
        stream, x = self._start(step)  # float32 [T, C] and the first layer's input [T, C]
        positions = step.positions if step.axis_positions is None else step.axis_positions
        tables: list[RotaryTables] = [table.at(positions) for table in self._tables]
        mutual, rows = None if step.images is None else step.images.mutual, cast(AttentionStep, step)
        attention.begin(rows if mutual is None else with_mutual_attention(rows, mutual))
        logit_rows = step.logit_rows
        layers = self._layers if adapted is None else adapted.layers
        num_sampled, last = logit_rows.shape[0], len(layers) - 1
        for index, (layer, table) in enumerate(zip(layers, self._table_of, strict=True)):
            mixed = layer.attend(index, x, () if table is None else tables[table], attention)  # [T, H ·]
            if index == last and not step.needs_every_logit:  # other rows are no longer needed
                if num_sampled == 0:
                    return stream.new_empty(0, self.config.vocab_size)
                mixed, stream = mixed.index_select(0, logit_rows), stream.index_select(0, logit_rows)
                if self.config.is_parallel:
                    x = x.index_select(0, logit_rows)
                if adapted is not None:
                    adapted.narrow()
            x = layer.feed_forward(stream, x, mixed)
        logits = self._logits(x)  # [K, V]
        return logits if keeps_dtype else logits.float()

    def _start(self, step: ModelStep) -> tuple[torch.Tensor, torch.Tensor]:
        if step.images is None:
            return self._embedding.start(step.token_ids)
        rows = torch.from_numpy(step.images.rows).to(self.device)
        vectors = torch.tensor(step.images.embeddings, device=self.device)
        return self._embedding.start_with(step.token_ids, rows, vectors)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        """[K, C] -> [K, V], float32 if the logits are scaled or capped."""
        logits, cap = self._head(x), self.config.logit_softcap
        if self.config.logit_multiplier != 1:
            logits = logits.float() * self.config.logit_multiplier
        return logits if cap is None else logits.float().div(cap).tanh_().mul_(cap)

    def _table(
        self, positions: RopeConfig | QueryTemperature, num_positions: int, kernels: Kernels
    ) -> Rotary | Temperature:
        if isinstance(positions, QueryTemperature):
            return Temperature(positions.rate, positions.interval, num_positions, self.dtype, self.device)
        head_dim = self.config.rotated_head_dim
        frequencies, attention_factor = rope_frequencies(positions, head_dim, num_positions)
        return Rotary(
            frequencies,
            attention_factor,
            head_dim,
            num_positions,
            self.dtype,
            self.device,
            positions.sections,
            is_lookup=kernels.looks_up_positions,
        )


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
        self._add_attention: AddNorm  # adds the attention's output; returns the feed-forward's input
        self._add_feed_forward: AddNorm  # adds the feed-forward's output; returns the next layer's input
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
        self._attention.bind(kernels)
        self._feed_forward.bind(kernels)
        self.link()

    def input_norm(self) -> NormConstants:
        """Return the norm of the layer's input, for products that take 8-bit floats in these. Call after `bind`."""
        norm, attention = self._before_attention.constants(), self._attention
        reads_float8 = isinstance(attention, SelfAttention) and attention.linears[0].reads_float8
        return replace(norm, dtype=FLOAT8) if reads_float8 else norm

    def bind_norms(self, kernels: Kernels, following: NormConstants) -> None:
        """Build the operators between products. `following` is the norm of the next layer's input, or of the head's."""
        after_attention, after_feed_forward = (
            None if norm is None else norm.constants() for norm in (self._after_attention, self._after_feed_forward)
        )
        multiplier, before_feed_forward = self._residual_multiplier, self._before_feed_forward.constants()
        if isinstance(self._feed_forward, Mlp) and self._feed_forward.linears[0].reads_float8:
            before_feed_forward = replace(before_feed_forward, dtype=FLOAT8)
        self._add_attention = kernels.add_norm(multiplier, before_feed_forward, after_attention)
        self._add_feed_forward = kernels.add_norm(multiplier, following, after_feed_forward)

    def link(self) -> None:
        """Build the operators that are called in every step."""
        self._output, self._feed = self._attention.project, self._feed_forward.forward
        if not self._shard.is_whole:
            self._reduce_outputs()

    def sites(self, prefix: str) -> Iterator[tuple[str, Linear]]:
        """Yield the linear maps that adapters can change, with the prefix of their parts' names; not experts' maps or
        maps with other operators."""
        yield from ((f"{prefix}self_attn.", linear) for linear in self._attention.linears if hasattr(linear, "forward"))
        if not isinstance(self._feed_forward, Moe):
            yield from ((f"{prefix}{self._names.feed_forward}.", linear) for linear in self._feed_forward.linears)

    def _reduce_outputs(self) -> None:
        """Apply all_reduce to the ranks' outputs before any other operation."""
        self._output, self._feed = _all_reduced(self._output, self._shard), _all_reduced(self._feed, self._shard)

    def attend(self, index: int, x: torch.Tensor, tables: RotaryTables, attention: Attention) -> torch.Tensor:
        """Compute attention of the layer's input x [T, C]: the weighted values of each token [T, H ·]."""
        return self._attention.mix(index, x, tables, attention)

    def feed_forward(self, stream: torch.Tensor, _x: torch.Tensor, mixed: torch.Tensor, /) -> torch.Tensor:
        """Add the attention's output and then the feed-forward's to stream [T, C], in place.

        Takes the layer's input x and `mixed` of `attend`, and returns the next layer's input [T, C].
        """
        x = self._add_attention(stream, self._output(mixed))
        return self._add_feed_forward(stream, self._feed(x))


class ParallelLayer(Layer):
    """Attention and feed-forward read the same normalized stream, and both are added to it."""

    def input_norm(self) -> NormConstants:
        return self._before_attention.constants()  # the last layer selects rows of it

    def bind_norms(self, kernels: Kernels, following: NormConstants) -> None:
        self._add: AddInPlace = kernels.add(self._residual_multiplier)
        self._add_feed_forward = kernels.add_norm(self._residual_multiplier, following)

    def feed_forward(self, stream: torch.Tensor, x: torch.Tensor, mixed: torch.Tensor, /) -> torch.Tensor:
        fed = self._feed(x)
        if not self._shard.is_whole:
            return self._add_feed_forward(stream, self._shard.all_reduce(fed + self._output(mixed)))
        self._add(stream, self._output(mixed))
        return self._add_feed_forward(stream, fed)

    def _reduce_outputs(self) -> None:
        """Apply one all_reduce to the sum of both."""


def _root_and_head(stored: Container[str]) -> tuple[str, str]:
    """Return the prefixes of body and head among a checkpoint's names."""
    return next((pair for pair in _ROOTS if f"{pair[0]}embed_tokens.weight" in stored), _ROOTS[0])


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
