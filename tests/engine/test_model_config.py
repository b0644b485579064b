"""ModelConfig: both spellings say the same, and what cannot be served is refused by the name of its field."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, MistralConfig

from engine.kernels.interface import Reach
from engine.models.config import RopeConfig, UnsupportedModel
from engine.models.registry import parse_config, read_config

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


def test_old_and_new_spelling_of_rotary_scaling_mean_the_same() -> None:
    old = PLAIN | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}}
    older = PLAIN | {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}}
    new = PLAIN | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}}
    assert parse_config(old) == parse_config(older) == parse_config(new)
    assert parse_config(new).layers[0].positions == RopeConfig(
        theta=5e5, kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=128
    )


def test_what_transformers_saves_is_read(tmp_path: Path) -> None:
    shape = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 99}
    LlamaConfig(**shape, attention_bias=True, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "llama")
    llama = read_config(tmp_path / "llama")
    attention, layer = llama.attention, llama.layers[-1]
    assert (attention.num_kv_heads, attention.head_dim) == (2, 16)
    assert (attention.has_bias, attention.has_output_bias, layer.feed_forward.has_bias) == (True, True, False)
    assert (layer.reach, llama.norm.eps, llama.is_head_tied) == (Reach(), 1e-6, False)
    mistral = MistralConfig(**shape, sliding_window=7, architectures=["MistralForCausalLM"], rms_norm_eps=1e-5)
    mistral.save_pretrained(tmp_path / "mistral")
    found = read_config(tmp_path / "mistral")
    assert (found.layers[0].reach, found.norm.eps) == (Reach(window=7), 1e-5)


def test_defaults_are_those_of_the_family() -> None:
    config = parse_config({key: value for key, value in PLAIN.items() if key != "num_key_value_heads"})
    assert (config.attention.num_kv_heads, config.attention.head_dim) == (8, 8)
    assert config.layers[0].positions == RopeConfig(theta=10000.0)
    assert parse_config(PLAIN | {"sliding_window": 5}).layers[0].reach == Reach()  # Llama has none
    mistral = PLAIN | {"architectures": ["MistralForCausalLM"]}
    assert parse_config(mistral).layers[0].reach == Reach(window=4096)
    assert parse_config(mistral | {"sliding_window": None}).layers[0].reach == Reach()


def test_generation_config_says_what_ends_text(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN | {"eos_token_id": 2}))
    assert read_config(tmp_path).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert read_config(tmp_path).eos_token_ids == (1, 2)
    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True}))
    assert read_config(tmp_path).eos_token_ids == (2,)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no architecture": ({"architectures": None}, "architectures"),
    "two architectures": ({"architectures": ["LlamaForCausalLM", "X"]}, "architectures"),
    "remote code": ({"auto_map": {"AutoModel": "modeling.Evil"}}, "auto_map"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config"),
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
    "end token outside": ({"eos_token_id": 128}, "eos_token_id"),
    "end tokens nested": ({"eos_token_id": [[1]]}, "eos_token_id"),
    "rotary kind": ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "spiral"),
    "rotary list": ({"rope_parameters": [1]}, "rope_parameters"),
    "rotary part": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    "rotary factor missing": ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
    "rotary factor zero": ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor"),
    "rotary factors equal": (
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}}, "low_freq_factor"
    ),
    "theta infinite": ({"rope_theta": math.inf}, "rope_theta"),
    "window zero": ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "sliding_window"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_by_the_name_of_its_field(name: str) -> None:
    change, field = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=field):
        parse_config(PLAIN | change)


def test_an_unknown_architecture_is_named_with_what_is_known() -> None:
    with pytest.raises(UnsupportedModel, match=r"BloomForCausalLM.*LlamaForCausalLM, MistralForCausalLM"):
        parse_config(PLAIN | {"architectures": ["BloomForCausalLM"]})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, None])
def test_a_config_that_is_no_object_is_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        read_config(tmp_path)
