"""Llama: norm, attention with rotary positions, residual; norm, gated feed-forward, residual.

Other families are described by their differences from it.
"""

from __future__ import annotations

from engine.kernels.interface import Activation
from engine.layers.config import AttentionConfig, MlpConfig, NormConfig
from engine.models.config import LayerConfig, ModelConfig
from engine.models.fields import Fields
from engine.models.rope_fields import read_rope

MAX_LAYERS = 1024
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def llama(fields: Fields, can_be_partial: bool = False) -> ModelConfig:
    """Read a Llama config. With `can_be_partial`, positions may rotate only a part of each head.

    Raises UnsupportedModel naming the field.
    """
    if fields.flag("use_sliding_window"):
        raise fields.refusal("use_sliding_window", "not supported (false is, as in all published models)")
    attention = read_heads(fields)
    max_positions = fields.whole("max_position_embeddings", 1, 1 << 26, default=2048)
    vocab_size = fields.whole("vocab_size", 2, 1 << 24)
    layer = LayerConfig(
        MlpConfig(
            fields.whole("intermediate_size", 1, 1 << 20),
            Activation(read_activation(fields)),
            has_bias=fields.flag("mlp_bias"),
        ),
        read_rope(fields, attention.head_dim, max_positions, can_be_partial),
    )
    return ModelConfig(
        architecture=fields.word("architecture"),
        vocab_size=vocab_size,
        hidden_size=fields.whole("hidden_size", 1, 1 << 17),
        max_positions=max_positions,
        attention=attention,
        layers=(layer,) * fields.whole("num_hidden_layers", 1, MAX_LAYERS),
        norm=NormConfig(eps=fields.number("rms_norm_eps", 0.0, 1.0, default=1e-6)),
        is_head_tied=fields.flag("tie_word_embeddings"),
        eos_token_ids=fields.token_ids("eos_token_id", vocab_size),
        bos_token_id=next(iter(fields.token_ids("bos_token_id", vocab_size)), None),
    )


def read_heads(fields: Fields) -> AttentionConfig:
    """Read the number and size of heads. Raises UnsupportedModel if they do not divide."""
    hidden_size = fields.whole("hidden_size", 1, 1 << 17)
    num_heads = fields.whole("num_attention_heads", 1, 1024)
    num_kv_heads = fields.whole("num_key_value_heads", 1, 1024, default=num_heads)
    if num_heads % num_kv_heads:
        raise fields.refusal("num_attention_heads", f"not a multiple of num_key_value_heads={num_kv_heads}")
    if "head_dim" not in fields and hidden_size % num_heads:
        raise fields.refusal("hidden_size", f"not a multiple of num_attention_heads={num_heads}")
    head_dim = fields.whole("head_dim", 2, 1024, default=hidden_size // num_heads)
    if head_dim % 2:
        raise fields.refusal("head_dim", f"{head_dim} must be even for rotary positions")
    has_bias = fields.flag("attention_bias")
    return AttentionConfig(num_heads, num_kv_heads, head_dim, has_bias=has_bias, has_output_bias=has_bias)


def read_activation(fields: Fields) -> str:
    name = fields.word("hidden_act", "silu")
    if name not in _ACTIVATIONS:
        raise fields.refusal("hidden_act", f"not supported ({', '.join(_ACTIVATIONS)} are)")
    return _ACTIVATIONS[name]
