"""ModelConfig: the parts of a decoder as data, from which `decoder.py` builds the layers.

Each family's module fills it in from a `config.json`. Knows neither checkpoints nor tensors. Counts are integers,
validated by the family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.kernels.interface import FULL_ATTENTION, AttentionShape, AttentionWindow
from engine.layers.config import RMS_NORM, AttentionConfig, MlpConfig, MoeConfig, NormConfig


class UnsupportedModel(Exception):
    """The model is not supported; the text names the architecture or the field."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions. `kind` is default, linear, llama3, yarn or longrope; fields of other kinds keep their
    defaults.

    The first `rotary_dim` numbers of a head are rotated (0: all), in pairs of one number from each half or, if
    `is_interleaved`, of adjacent numbers. With `sections`, tokens of images have positions on three axes (time, row,
    column): the first `sections[0]` pairs are rotated by the position on the first axis, and so on.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    is_truncated: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    rotary_dim: int = 0
    is_interleaved: bool = False
    sections: tuple[int, ...] = ()

    def is_long_for(self, max_model_len: int) -> bool:
        """Return True if a context of `max_model_len` tokens needs the long factors of long RoPE."""
        return self.kind == "longrope" and max_model_len > self.original_max_positions


@dataclass(frozen=True)
class QueryTemperature:
    """Instead of rotation: queries grow by `rate` × log(1 + floor((position + 1) / interval))."""

    rate: float
    interval: float


@dataclass(frozen=True)
class LayerConfig:
    """Properties that may differ between layers. `qk_norm` is head (each query and key head separately), width (all
    heads together), weightless (as head, without a weight in the checkpoint) or None."""

    feed_forward: MlpConfig | MoeConfig
    positions: RopeConfig | QueryTemperature | None
    window: AttentionWindow = FULL_ATTENTION
    qk_norm: str | None = None


@dataclass(frozen=True)
class Names:
    """A checkpoint's names for the parts of a layer. A norm exists if it has a name."""

    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")  # or one name for all three
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")  # or one name for both, or for an ungated matrix
    down: str = "down_proj"
    feed_forward: str = "mlp"
    mixture: str = "mlp"
    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_feed_forward: str | None = "post_attention_layernorm"
    after_feed_forward: str | None = None


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. Multipliers apply to embeddings, layer outputs and logits.

    `ignored` lists prefixes of tensors that text generation does not use.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    max_positions: int
    attention: AttentionConfig
    layers: tuple[LayerConfig, ...]
    norm: NormConfig = RMS_NORM
    names: Names = Names()
    is_head_tied: bool = False
    is_parallel: bool = False  # attention and feed-forward read the same normalized stream
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    logit_softcap: float | None = None
    ignored: tuple[str, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def has_long_rope(self, max_model_len: int) -> bool:
        """Return True if positions use the long factors of long RoPE with this context length."""
        ropes = [layer.positions for layer in self.layers if isinstance(layer.positions, RopeConfig)]
        return any(rope.is_long_for(max_model_len) for rope in ropes)

    @property
    def rotated_head_dim(self) -> int:
        """Size of the rotated part of a head."""
        return self.attention.head_dim if self.attention.latent is None else self.attention.latent.rotary_dim

    @property
    def attention_shape(self) -> AttentionShape:
        """Constants for the kernels and the KV pool."""
        attention, windows = self.attention, tuple(layer.window for layer in self.layers)
        latent = attention.latent
        if latent is None:
            return AttentionShape(
                attention.num_heads,
                attention.num_kv_heads,
                attention.head_dim,
                windows,
                attention.scale,
                attention.softcap,
            )
        return AttentionShape(
            attention.num_heads, 1, latent.rank + latent.rotary_dim, windows, attention.scale, value_dim=latent.rank
        )

    def with_attention(self, **changes: object) -> ModelConfig:
        """Return a copy with changed `attention`."""
        return replace(self, attention=replace(self.attention, **changes))  # type: ignore[arg-type]

    def with_layers(self, change: Callable[[int, LayerConfig], LayerConfig]) -> ModelConfig:
        """Return a copy with each layer replaced by `change(index, layer)`."""
        return replace(self, layers=tuple(change(index, layer) for index, layer in enumerate(self.layers)))
