"""Llama 4's text part: Llama with chunked attention, interleaved rotary pairs and normalized heads in layers with
positions, query scaling by position in the others, and mixtures beside a shared expert whose weights multiply the
inputs."""

from __future__ import annotations

from dataclasses import replace

from engine.kernels.interface import Activation, AttentionWindow
from engine.layers.config import ExpertNames, MlpConfig, MoeConfig
from engine.models.config import LayerConfig, ModelConfig, Names, QueryTemperature
from engine.models.fields import Fields
from engine.models.llama import llama, read_activation
from engine.models.mixtures import read_num_experts, read_router, with_mixture
from engine.models.rope_fields import with_interleaved_pairs
from engine.models.sliding_window import CHUNKED, FULL, layer_types
from engine.models.smollm3 import read_layers_with_positions

_EXPERTS = ExpertNames(router="router", is_stacked=True)
_NAMES = Names(feed_forward="feed_forward", mixture="feed_forward")
_IMAGE_TENSORS = ("vision_model.", "multi_modal_projector.", "model.vision_model.", "model.multi_modal_projector.")


def llama4(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(
        rms_norm_eps=1e-5,
        rope_theta=5e5,
        head_dim=128,
        num_key_value_heads=8,
        attention_chunk_size=8192,
        max_position_embeddings=131_072,
    )
    inner = fields.whole("intermediate_size", 1, 1 << 20)
    dense = MlpConfig(fields.whole("intermediate_size_mlp", 1, 1 << 20, default=16384))
    config = _with_attention(with_interleaved_pairs(llama(fields)), fields)
    activation = Activation(read_activation(fields))
    config = config.with_layers(lambda _, layer: replace(layer, feed_forward=replace(dense, activation=activation)))
    num_experts = read_num_experts(fields, "num_local_experts", "num_experts")
    moe = MoeConfig(
        num_experts,
        inner,
        replace(read_router(fields, num_experts, default=1), score="sigmoid", is_normalized=False),
        activation,
        shared=MlpConfig(inner, activation),
        is_input_weighted=True,
        names=_EXPERTS,
    )
    return replace(
        with_mixture(config, moe, _mixture_layers(config, fields).__contains__), names=_NAMES, ignored=_IMAGE_TENSORS
    )


def _with_attention(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Return a copy with each layer's attention window and positions."""
    has_positions = read_layers_with_positions(config, fields)
    kinds = layer_types(config, fields, lambda index: CHUNKED if has_positions[index] else FULL)
    has_chunks = "attention_chunk_size" in fields
    chunk = AttentionWindow(chunk=fields.whole("attention_chunk_size", 1, 1 << 26) if has_chunks else None)
    qk_norm = "weightless" if fields.flag("use_qk_norm", default=True) else None
    temperature = None
    if fields.raw.get("attn_temperature_tuning", True):  # published as a flag and as a number
        temperature = QueryTemperature(
            fields.number("attn_scale", 0.0, 1e6, default=0.1), fields.number("floor_scale", 1.0, 1e9, default=8192)
        )

    def change(index: int, layer: LayerConfig) -> LayerConfig:
        window = chunk if kinds[index] == CHUNKED else AttentionWindow()
        if has_positions[index]:
            return replace(layer, window=window, qk_norm=qk_norm)
        return replace(layer, window=window, positions=temperature)

    return config.with_layers(change)


def _mixture_layers(config: ModelConfig, fields: Fields) -> tuple[int, ...]:
    """Return the indices of layers with mixtures: `moe_layers`, or every `interleave_moe_layer_step`-th layer."""
    if fields.raw.get("moe_layers") is not None:
        return fields.indices("moe_layers", config.num_layers)
    step = fields.whole("interleave_moe_layer_step", 1, 1 << 16, default=1)
    return tuple(range(step - 1, config.num_layers, step))
