"""engine/models: configs in every spelling, and rejection of unsupported ones with the field's name."""

from __future__ import annotations

import contextlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, MistralConfig, Olmo2Config

from engine.kernels.interface import AttentionWindow
from engine.models.config import RopeConfig, UnsupportedModel
from engine.models.registry import ARCHITECTURES, parse_config, read_config

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}


def test_old_and_new_spelling_of_rotary_scaling_are_equal() -> None:
    old = PLAIN | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}
    older = PLAIN | {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}}
    new = PLAIN | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}}
    assert parse_config(old) == parse_config(older) == parse_config(new)
    assert parse_config(new).layers[0].positions == RopeConfig(
        theta=5e5, kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=128
    )


def test_config_saved_by_transformers_is_read(tmp_path: Path) -> None:
    shape = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 99}
    LlamaConfig(**shape, attention_bias=True, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "llama")
    llama = read_config(tmp_path / "llama")
    attention, layer = llama.attention, llama.layers[-1]
    assert (attention.num_kv_heads, attention.head_dim) == (2, 16)
    assert (attention.has_bias, attention.has_output_bias, layer.feed_forward.has_bias) == (True, True, False)
    assert (layer.window, llama.norm.eps, llama.is_head_tied) == (AttentionWindow(), 1e-6, False)
    mistral = MistralConfig(**shape, sliding_window=7, architectures=["MistralForCausalLM"], rms_norm_eps=1e-5)
    mistral.save_pretrained(tmp_path / "mistral")
    found = read_config(tmp_path / "mistral")
    assert (found.layers[0].window, found.norm.eps) == (AttentionWindow(size=7), 1e-5)


def test_missing_fields_have_the_defaults_of_the_family() -> None:
    config = parse_config({key: value for key, value in PLAIN.items() if key != "num_key_value_heads"})
    assert (config.attention.num_kv_heads, config.attention.head_dim) == (8, 8)
    assert config.layers[0].positions == RopeConfig(theta=10000.0)
    assert parse_config(PLAIN | {"sliding_window": 5}).layers[0].window == AttentionWindow()  # Llama has no window
    mistral = PLAIN | {"architectures": ["MistralForCausalLM"]}
    assert parse_config(mistral).layers[0].window == AttentionWindow(size=4096)
    assert parse_config(mistral | {"sliding_window": None}).layers[0].window == AttentionWindow()


def test_end_tokens_come_from_the_generation_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN | {"eos_token_id": 2}))
    assert read_config(tmp_path).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert read_config(tmp_path).eos_token_ids == (1, 2)
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True}))
    assert read_config(tmp_path).eos_token_ids == (2,)


def test_end_tokens_outside_the_vocabulary_are_ignored() -> None:
    """transformers saves the special tokens of the family with small models, whatever their vocabulary."""
    config = parse_config(PLAIN | {"eos_token_id": [5, 32_000], "bos_token_id": 32_001})
    assert (config.eos_token_ids, config.bos_token_id) == ((5,), None)
    saved = Olmo2Config(vocab_size=99, hidden_size=64, architectures=["Olmo2ForCausalLM"]).to_dict()
    assert saved["eos_token_id"] > 99
    assert parse_config(saved).eos_token_ids == ()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no architecture": ({"architectures": None}, "architectures"),
    "two architectures": ({"architectures": ["LlamaForCausalLM", "X"]}, "architectures"),
    "remote code": ({"auto_map": {"AutoModel": "modeling.Evil"}}, "auto_map"),
    "activation": ({"hidden_act": "mish"}, "hidden_act"),
    "negative": ({"num_hidden_layers": -1}, "num_hidden_layers"),
    "zero": ({"vocab_size": 0}, "vocab_size"),
    "absurd": ({"hidden_size": 1 << 40}, "hidden_size"),
    "more layers than anyone has": ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    "text": ({"hidden_size": "64"}, "hidden_size"),
    "true": ({"num_hidden_layers": True}, "num_hidden_layers"),
    "fraction": ({"intermediate_size": 96.5}, "intermediate_size"),
    "missing": ({"hidden_size": None}, "hidden_size"),
    "heads not divisible": ({"num_key_value_heads": 3}, "num_key_value_heads"),
    "hidden not divisible": ({"hidden_size": 63}, "hidden_size"),
    "odd heads": ({"head_dim": 7}, "head_dim"),
    "eps not a number": ({"rms_norm_eps": math.nan}, "rms_norm_eps"),
    "tie not a flag": ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
    "end token negative": ({"eos_token_id": -1}, "eos_token_id"),
    "end token absurd": ({"eos_token_id": 1 << 40}, "eos_token_id"),
    "end tokens nested": ({"eos_token_id": [[1]]}, "eos_token_id"),
    "rotary kind": ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "spiral"),
    "rotary list": ({"rope_parameters": [1]}, "rope_parameters"),
    "rotary nothing": ({"rope_parameters": 0}, "rope_parameters"),
    "rotary list of nothing": ({"rope_scaling": []}, "rope_scaling"),
    "rotary of each kind of layer": (
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}}}, "full_attention"
    ),
    "rotary part": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    "rotary factor missing": ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
    "rotary factor zero": ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor"),
    "rotary factors reversed": (
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.5}}, "low_freq_factor"
    ),
    "theta infinite": ({"rope_theta": math.inf}, "rope_theta"),
    "window zero": ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "sliding_window"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_config_is_rejected_with_the_field(name: str) -> None:
    change, field = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=field):
        parse_config(PLAIN | change)


# Family -> configs with an invalid field, and the field that the error names.
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GROUPS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 4, "topk_group": 2}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 4}
REFUSED_BY_FAMILY: dict[str, list[tuple[dict[str, Any], str]]] = {
    "Qwen2ForCausalLM": [
        ({"use_sliding_window": "yes"}, "use_sliding_window"),
        ({"use_sliding_window": True}, "use_sliding_window"),
    ],
    "MixtralForCausalLM": [
        ({"num_local_experts": None}, "num_local_experts"),
        ({"num_local_experts": 0}, "num_local_experts"),
        ({"num_local_experts": 1 << 20}, "num_local_experts"),
        ({"num_local_experts": 1024, "num_hidden_layers": 1024}, "num_hidden_layers"),
        ({"num_local_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok"),
    ],
    "Qwen2MoeForCausalLM": [
        (MIXTURE, "shared_expert_intermediate_size"),
        (MIXTURE | {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size"),
    ],
    "Qwen3MoeForCausalLM": [
        (MIXTURE | {"num_experts_per_tok": 0}, "num_experts_per_tok"),
        (MIXTURE | {"num_experts_per_tok": None}, "num_experts_per_tok"),
        (MIXTURE | {"moe_intermediate_size": -1}, "moe_intermediate_size"),
        (MIXTURE | {"mlp_only_layers": [2]}, "mlp_only_layers"),
        (MIXTURE | {"mlp_only_layers": "all"}, "mlp_only_layers"),
        (MIXTURE | {"mlp_only_layers": 0}, "mlp_only_layers"),
        (MIXTURE | {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        (MIXTURE | {"norm_topk_prob": 1}, "norm_topk_prob"),
    ],
    "Gemma2ForCausalLM": [
        ({"attn_logit_softcapping": 0}, "attn_logit_softcapping"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention", "linear_attention"]}, "layer_types"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"final_logit_softcapping": math.nan}, "final_logit_softcapping"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"hidden_activation": "mish"}, "mish"),
    ],
    "Gemma3ForCausalLM": [
        ({"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ({"rope_parameters": {"sliding_attention": [1]}}, "sliding_attention"),
        ({"rope_parameters": {"full_attention": {"rope_type": "spiral"}}}, "spiral"),
        ({"rope_local_base_freq": math.inf}, "rope_local_base_freq"),
        ({"text_config": [1]}, "text_config"),
    ],
    "Phi3ForCausalLM": [
        ({"partial_rotary_factor": 2.0}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.1}, "head_dim"),
        ({"partial_rotary_factor": 0.4}, "head_dim"),
        ({"rope_scaling": LONG | {"short_factor": [1.0]}}, "short_factor"),
        ({"rope_scaling": LONG | {"long_factor": [1.0, 1.0, 1.0, 0.0]}}, "long_factor"),
        ({"rope_scaling": LONG | {"long_factor": None}}, "long_factor"),
    ],
    "GraniteForCausalLM": [
        ({"logits_scaling": 0}, "logits_scaling"),
        ({"residual_multiplier": math.nan}, "residual_multiplier"),
        ({"attention_multiplier": "1"}, "attention_multiplier"),
    ],
    "GptOssForCausalLM": [
        ({"num_local_experts": 4, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_local_experts": 4, "swiglu_limit": 0}, "swiglu_limit"),
    ],
    "SmolLM3ForCausalLM": [
        ({"no_rope_layers": [1]}, "no_rope_layers"),
        ({"no_rope_layers": [1, 2]}, "no_rope_layers"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval"),
    ],
    "Starcoder2ForCausalLM": [({"norm_epsilon": 2}, "norm_epsilon"), ({"use_bias": 0}, "use_bias")],
    "Cohere2ForCausalLM": [
        ({"logit_scale": 0}, "logit_scale"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern"),
    ],
    "DeepseekV2ForCausalLM": [
        (GROUPS | {"topk_method": "noaux"}, "topk_method"),
        (GROUPS | {"kv_lora_rank": 0}, "kv_lora_rank"),
        (GROUPS | {"scoring_func": "sigmoid"}, "scoring_func"),
        (GROUPS | {"qk_rope_head_dim": 7}, "head_dim"),
        (GROUPS | {"moe_layer_freq": 2}, "moe_layer_freq"),
    ],
    "DeepseekV3ForCausalLM": [
        (GROUPS | {"n_group": 3}, "n_group"),
        (GROUPS | {"n_group": 8}, "n_group"),
        (GROUPS | {"topk_group": 5}, "topk_group"),
        (GROUPS | {"scoring_func": "softmax"}, "scoring_func"),
        (GROUPS | {"num_experts_per_tok": 5}, "num_experts_per_tok"),
        (GROUPS | {"q_lora_rank": 0}, "q_lora_rank"),
        (GROUPS | {"n_shared_experts": -1}, "n_shared_experts"),
        (GROUPS | {"num_nextn_predict_layers": 1000}, "num_nextn_predict_layers"),
    ],
    "Llama4ForCausalLM": [
        ({"num_local_experts": 4, "attention_chunk_size": 0}, "attention_chunk_size"),
        ({"num_local_experts": 4, "no_rope_layers": [1, 1, 0]}, "no_rope_layers"),
        ({"num_local_experts": 4, "moe_layers": [7]}, "moe_layers"),
        ({"num_local_experts": 4, "floor_scale": 0}, "floor_scale"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "change", "field"),
    [(family, change, field) for family, cases in REFUSED_BY_FAMILY.items() for change, field in cases],
)
def test_unsupported_field_of_a_family_is_rejected_by_name(
    architecture: str, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(UnsupportedModel, match=field):
        parse_config(PLAIN | {"architectures": [architecture]} | change)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_invalid_sizes_are_rejected_in_every_family(architecture: str) -> None:
    needed = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
              "shared_expert_intermediate_size": 16, "head_dim": 16, **GROUPS}  # fmt: skip
    plain = PLAIN | needed | {"architectures": [architecture]}
    assert parse_config(plain).num_layers == 2
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        for value in (0, -1, 1 << 40, 1.5, "8", True, math.nan):
            with pytest.raises(UnsupportedModel, match=name):
                parse_config(plain | {name: value})
    with pytest.raises(UnsupportedModel, match="num_hidden_layers is missing"):
        parse_config(plain | {"num_hidden_layers": None})
    if "Deepseek" not in architecture:  # DeepSeek's heads share one key
        with pytest.raises(UnsupportedModel, match="num_attention_heads=7"):
            parse_config(plain | {"num_attention_heads": 7})


def test_text_part_of_gemma_3_is_read_with_published_defaults() -> None:
    raw = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 12,
            "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
        "vision_config": {"hidden_size": 1152},
    }
    config = parse_config(raw)
    assert (config.vocab_size, config.attention.num_heads, config.attention.head_dim) == (262_208, 8, 256)
    assert (config.is_head_tied, config.eos_token_ids) == (True, (1, 106))
    nothing = raw | {"text_config": raw["text_config"] | {"eos_token_id": None}}
    assert parse_config(nothing).eos_token_ids == (1, 106)
    own = raw | {"text_config": raw["text_config"] | {"eos_token_id": 7}}
    assert parse_config(own).eos_token_ids == (7,)
    near, far = config.layers[0], config.layers[5]
    assert (near.window, near.positions) == (AttentionWindow(size=1024), RopeConfig(theta=1e4))
    assert (far.window, far.positions) == (
        AttentionWindow(),
        RopeConfig(theta=1e6, kind="linear", factor=8.0, original_max_positions=131_072),
    )
    assert sum(layer.window == AttentionWindow() for layer in config.layers) == 2


def test_text_part_of_mistral_3_is_mistral() -> None:
    text = {name: value for name, value in PLAIN.items() if name != "architectures"} | {"sliding_window": None}
    raw = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text | {"model_type": "mistral"}}
    assert parse_config(raw).layers == parse_config(PLAIN | {"architectures": ["MistralForCausalLM"]} | text).layers
    assert not parse_config(raw).is_head_tied
    assert parse_config(raw | {"tie_word_embeddings": True}).is_head_tied
    with pytest.raises(UnsupportedModel, match="model_type=ministral3"):
        parse_config(raw | {"text_config": text | {"model_type": "ministral3"}})


def test_auto_map_of_a_family_published_with_code_is_ignored() -> None:
    published = PLAIN | {
        "architectures": ["Phi3ForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
    }
    assert parse_config(published).architecture == "Phi3ForCausalLM"


def test_unknown_architecture_is_rejected_with_the_supported_ones() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"BloomForCausalLM.*LlamaForCausalLM, Llava.*, Mistral3ForConditionalGeneration"
    ):
        parse_config(PLAIN | {"architectures": ["BloomForCausalLM"]})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, None])
def test_config_that_is_not_an_object_is_rejected(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        read_config(tmp_path)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.sampled_from([1 << 40, 0.5, 1e-9, 1e300, math.nan, math.inf, "silu", "x", [], {}, [1, 0], [None], {"a": [1]}]),
    st.lists(st.sampled_from(["full_attention", "sliding_attention", "chunked_attention"]), max_size=3),
)
ROPE_JUNK = st.dictionaries(
    st.sampled_from(["rope_type", "type", "factor", "rope_theta", "low_freq_factor", "high_freq_factor", "short_factor",
                     "long_factor", "beta_fast", "original_max_position_embeddings", "full_attention"]),
    st.one_of(JUNK, st.sampled_from(["linear", "llama3", "yarn", "longrope"])),
)  # fmt: skip
NAMES = sorted({
    *PLAIN, *GROUPS, *MIXTURE, "head_dim", "sliding_window", "layer_types", "use_sliding_window", "no_rope_layers",
    "moe_layers", "mlp_only_layers", "partial_rotary_factor", "text_config", "eos_token_id", "kv_lora_rank",
    "q_lora_rank", "rms_norm_eps", "hidden_act", "num_local_experts", "attention_chunk_size", "logit_scale",
} - {"architectures"})  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(ARCHITECTURES)), st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=5), ROPE_JUNK, JUNK
)
def test_any_config_is_read_or_rejected(
    architecture: str, junk: dict[str, Any], rope: dict[str, Any], other: Any
) -> None:
    raw = PLAIN | GROUPS | {"num_local_experts": 4, "num_experts": 4, "shared_expert_intermediate_size": 8}
    raw |= {"architectures": [architecture], "rope_scaling": rope or other} | junk
    with contextlib.suppress(UnsupportedModel):  # no other exception is accepted
        config = parse_config(raw)
        assert config.attention_shape.kv_width > 0
        assert config.num_layers == raw["num_hidden_layers"]


def test_models_page_lists_every_architecture() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    assert set(re.findall(r"`(\w+For(?:CausalLM|ConditionalGeneration))`", page)) == set(ARCHITECTURES)
