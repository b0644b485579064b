"""StarCoder 2: Llama with layer norm, an ungated feed-forward, biases everywhere, and optionally a sliding window in
every layer."""

from __future__ import annotations

from dataclasses import replace

from engine.kernels.interface import Activation
from engine.layers.config import MlpConfig, NormConfig
from engine.models.config import ModelConfig, Names
from engine.models.fields import Fields
from engine.models.llama import llama, read_activation
from engine.models.sliding_window import with_window


def starcoder2(fields: Fields) -> ModelConfig:
    has_bias = fields.flag("use_bias", default=True)
    fields = fields.with_defaults(
        tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    config = with_window(llama(fields), fields).with_attention(has_bias=has_bias, has_output_bias=has_bias)
    inner = fields.whole("intermediate_size", 1, 1 << 20)
    feed_forward = MlpConfig(inner, Activation(read_activation(fields), is_gated=False), has_bias)
    return replace(
        config.with_layers(lambda _, layer: replace(layer, feed_forward=feed_forward)),
        norm=NormConfig("layer", fields.number("norm_epsilon", 0.0, 1.0, default=1e-5), has_bias=True),
        names=Names(gate_up=("c_fc",), down="c_proj"),
    )
