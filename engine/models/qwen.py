"""Qwen 2, 2.5 and 3, with and without mixtures of experts.

Qwen 2 is Llama with biases on queries, keys and values. Qwen 3 normalizes query and key heads instead. The mixtures of
Qwen 2 MoE have a gated shared expert. The text part of Qwen 2-VL and 2.5-VL is Qwen 2 with positions on three axes;
`engine/tasks/one_pass/vision_encoder.py` runs the vision part.
"""

from __future__ import annotations

from dataclasses import replace

from engine.kernels.interface import Activation
from engine.layers.config import MlpConfig, MoeConfig
from engine.models.config import LayerConfig, ModelConfig, RopeConfig
from engine.models.fields import Fields
from engine.models.llama import llama, read_activation
from engine.models.mixtures import read_num_experts, read_router, with_mixture
from engine.models.rope_fields import read_axis_sections

_IMAGE_TENSORS = ("visual.", "model.visual.")


def qwen2(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(max_position_embeddings=32_768)
    return llama(fields).with_attention(has_bias=True, has_output_bias=False)


def qwen2_vl(fields: Fields) -> ModelConfig:
    config = qwen2(_with_default_rope(fields))
    sections = read_axis_sections(fields, config.attention.head_dim)

    def change(_index: int, layer: LayerConfig) -> LayerConfig:
        assert isinstance(layer.positions, RopeConfig)
        return replace(layer, positions=replace(layer.positions, sections=sections))

    return replace(config.with_layers(change), ignored=_IMAGE_TENSORS)


def _with_default_rope(fields: Fields) -> Fields:
    """Return the fields with `mrope`, the name of positions on several axes without scaling, as `default`."""
    changed = {
        name: {**value, "rope_type": "default", "type": "default"}
        for name in ("rope_parameters", "rope_scaling")
        if (value := fields.inner(name).raw) and "mrope" in (value.get("rope_type"), value.get("type"))
    }
    return Fields({**fields.raw, **changed}, fields.where)


def qwen2_moe(fields: Fields) -> ModelConfig:
    config = qwen2(fields).with_attention(has_bias=fields.flag("qkv_bias", default=True))
    moe = _read_mixture(fields)
    shared = MlpConfig(fields.whole("shared_expert_intermediate_size", 1, 1 << 20), moe.activation)
    return _with_mixture(config, fields, replace(moe, shared=shared, is_shared_gated=True))


def qwen3(fields: Fields) -> ModelConfig:
    return with_head_norms(llama(fields.with_defaults(head_dim=128, max_position_embeddings=32_768)))


def qwen3_moe(fields: Fields) -> ModelConfig:
    config = with_head_norms(llama(fields.with_defaults(num_key_value_heads=4, max_position_embeddings=32_768)))
    return _with_mixture(config, fields, _read_mixture(fields))


def with_head_norms(config: ModelConfig) -> ModelConfig:
    """Return a copy that normalizes each query and key head."""
    return config.with_layers(lambda _, layer: replace(layer, qk_norm="head"))


def _read_mixture(fields: Fields) -> MoeConfig:
    num_experts = read_num_experts(fields, "num_experts", "num_local_experts")
    return MoeConfig(
        num_experts,
        fields.whole("moe_intermediate_size", 1, 1 << 20),
        replace(read_router(fields, num_experts), is_normalized=fields.flag("norm_topk_prob")),
        Activation(read_activation(fields)),
    )


def _with_mixture(config: ModelConfig, fields: Fields, moe: MoeConfig) -> ModelConfig:
    """Use the mixture in every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`."""
    dense = fields.indices("mlp_only_layers", config.num_layers)
    step = fields.whole("decoder_sparse_step", 1, 1 << 16, default=1)
    return with_mixture(config, moe, lambda index: index not in dense and (index + 1) % step == 0)
