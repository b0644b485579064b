"""weight_files/adapter_files.py: supported adapters, and rejection of others with the field's or tensor's name."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.catalog.adapters import MODULES, config_bytes, weights_bytes
from weight_files.adapter_files import AdapterError, check_fit, parse_settings, read_adapter

Q = "base_model.model.model.layers.0.self_attn.q_proj"


def write(folder: Path, config: bytes | None = None, weights: bytes | None = None) -> Path:
    (folder / "adapter_config.json").write_bytes(config_bytes() if config is None else config)
    (folder / "adapter_model.safetensors").write_bytes(weights_bytes() if weights is None else weights)
    return folder


def error_of(folder: Path, config: bytes | None = None, weights: bytes | None = None) -> str:
    with pytest.raises(AdapterError) as caught:
        read_adapter(write(folder, config, weights), max_rank=32)
    return str(caught.value)


def test_adapter_lists_its_modules_with_ranks_and_scales(tmp_path: Path):
    form = read_adapter(write(tmp_path))
    assert {module: (each.num_in, each.num_out) for module, each in form.changes.items()} == MODULES
    assert {(each.rank, each.scale) for each in form.changes.values()} == {(4, 2.0)}
    check_fit(form, MODULES)


@pytest.mark.parametrize(
    ("changes", "scales"),
    [
        ({"use_rslora": True}, {4.0}),
        ({"alpha_pattern": {"q_proj": 2}}, {0.5, 2.0}),
        ({"r": 9, "rank_pattern": {"layers.0.self_attn.q_proj": 4, "v_proj": 4}}, {2.0}),
        ({"alpha_pattern": {"^model.layers.0.self_attn.q_proj": 2, "q_proj": 4}}, {0.5, 2.0}),
        ({"alpha_pattern": {r"layers\.0\.self_attn\.q_proj$": 2, "self_attn.q_proj": 4}}, {0.5, 2.0}),
        ({"use_rslora": True, "r": 9, "rank_pattern": {"q_proj": 4, "v_proj": 4}}, {4.0}),
        ({"target_modules": "all-linear"}, {2.0}),
        ({"target_modules": r".*self_attn\.(q|v)_proj"}, {2.0}),
        ({"target_modules": ["q_proj", "v_proj", "down_proj"], "exclude_modules": ["down_proj"]}, {2.0}),
        ({"target_modules": ["q_proj", "v_proj", "w1"], "layers_to_transform": [0, 1]}, {2.0}),
        ({"eva_config": {"rho": 2.0}, "loftq_config": {}, "qalora_group_size": 16, "runtime_config": {"a": 1}}, {2.0}),
        ({"use_dora": None, "use_bdlora": None, "megatron_config": None, "megatron_core": "megatron.core"}, {2.0}),
        ({"base_model_name_or_path": "acme/base", "inference_mode": True, "unsloth_fixed": True}, {2.0}),
        ({"target_modules": ["model.layers.0.self_attn.q_proj", "self_attn.v_proj"]}, {2.0}),
        ({"lora_alpha": 1.5, "init_lora_weights": True, "modules_to_save": [], "lora_dropout": 0.1}, {0.375}),
    ],
)
def test_scales_and_patterns_equal_those_of_peft(changes: dict[str, Any], scales: set[float], tmp_path: Path):
    form = read_adapter(write(tmp_path, config_bytes(**changes)))
    assert {each.scale for each in form.changes.values()} == scales


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"peft_type": "LOHA"}, "'peft_type'"), ({"task_type": "SEQ_CLS"}, "'task_type'"),
        ({"use_dora": True}, "'use_dora'"), ({"modules_to_save": ["lm_head"]}, "'modules_to_save'"),
        ({"kasa_config": {"beta": 1e-4}}, "'kasa_config'"), ({"velora_config": {"a": 1}}, "'velora_config'"),
        ({"use_bdlora": {"nblocks": 2}}, "'use_bdlora'"),
        ({"use_new_trick": True}, "'use_new_trick'"), ({"new_trick_config": {"a": 1}}, "'new_trick_config'"),
        ({"arrow_config": {"top_k": 3}}, "'arrow_config'"), ({"use_qalora": True}, "'use_qalora'"),
        ({"target_modules": ["q_proj", "lm_head"]}, "'target_modules' names 'lm_head'"),
        ({"target_modules": ["model.embed_tokens"]}, "'target_modules' names 'embed_tokens'"),
        ({"alpha_pattern": {"^layers.0.self_attn.q_proj": 2}}, "'alpha_pattern'"),
        ({"bias": "all"}, "'bias'"), ({"lora_bias": True}, "'lora_bias'"), ({"fan_in_fan_out": True}, "'fan_in_fan"),
        ({"layer_replication": [[0, 2]]}, "'layer_replication'"), ({"init_lora_weights": "pissa"}, "'init_lora"),
        ({"r": 0}, "'r' must be >= 1 and <= 32"), ({"r": 33}, "<= 32"), ({"r": True}, "'r'"), ({"r": "8"}, "'r'"),
        ({"r": 4.0}, "'r'"), ({"r": 10**400}, "'r'"), ({"lora_alpha": None}, "'lora_alpha'"),
        ({"lora_alpha": -1}, "'lora_alpha'"), ({"lora_alpha": 1e300}, "'lora_alpha'"),
        ({"lora_alpha": math.nan}, "'lora_alpha'"), ({"use_rslora": "yes"}, "'use_rslora'"),
        ({"target_modules": [1]}, "'target_modules'"), ({"target_modules": {"a": 1}}, "'target_modules'"),
        ({"target_modules": ["q_proj", "v_proj", "o_proj"]}, "'o_proj'"), ({"target_modules": ["q_proj"]}, "v_proj"),
        ({"rank_pattern": {".*q": 4}}, "'rank_pattern'"), ({"rank_pattern": {"q_proj": 99}}, "'rank_pattern'"),
        ({"rank_pattern": {"q_proj": 3}}, "rank 4"), ({"alpha_pattern": [1]}, "'alpha_pattern'"), ({"r": 5}, "rank 4"),
        ({"model_type": "a b"}, "'model_type'"), ({"x": "y" * 70_000}, "65536"),
    ],
)  # fmt: skip
def test_unsupported_config_is_rejected_with_the_field(changes: dict[str, Any], field: str, tmp_path: Path):
    text = error_of(tmp_path, config_bytes(**changes))
    assert field in text
    assert "adapter_" in text


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"r": 4, "r": 4}', b"\xff\xfe", b"[" * 50_000, b'{"r":' * 9000])
def test_config_that_is_not_a_json_object_is_rejected(text: bytes, tmp_path: Path):
    assert "adapter_config.json" in error_of(tmp_path, text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{Q}.lora_B.weight": None}, "no matrix lora_B"),
        ({f"{Q}.lora_A.weight": np.zeros((3, 16), np.float32)}, "cannot be multiplied"),
        ({f"{Q}.lora_A.weight": np.zeros((4, 16), np.float64)}, "type F64"),
        ({f"{Q}.lora_A.weight": np.zeros((4, 16), np.int8)}, "type I8"),
        ({f"{Q}.lora_A.weight": np.zeros((4, 16, 1), np.float32)}, "cannot be multiplied"),
        ({f"{Q}.lora_magnitude_vector": np.zeros(4, np.float32)}, "is not a LoRA matrix"),
        ({"base_model.model.lm_head.lora_A.weight": np.zeros((4, 16), np.float32)}, "is not a LoRA matrix"),
        (
            {"base_model.model.model.embed_tokens.lora_embedding_A": np.zeros((4, 16), np.float32)},
            "is not a LoRA matrix",
        ),
        ({"base_model.model.lm_head.weight": np.zeros((4, 16), np.float32)}, "save_embedding_layers=False"),
        ({"base_model.model.model.embed_tokens.weight": np.zeros((4, 16), np.float32)}, "save_embedding_layers=False"),
        ({"model.layers.0.self_attn.q_proj.lora_A.weight": np.zeros((4, 16), np.float32)}, "two matrices lora_A"),
        (
            {f"{Q.replace('layers.0', 'layers.00')}.lora_A.weight": np.zeros((4, 16), np.float32)},
            "is not a LoRA matrix",
        ),
    ],
)
def test_unsupported_weights_are_rejected_with_the_tensor(changes: dict[str, Any], message: str, tmp_path: Path):
    assert message in error_of(tmp_path, weights=weights_bytes(**changes))


def test_ranks_above_the_limit_and_empty_files_are_rejected(tmp_path: Path):
    assert "at most 32" in error_of(tmp_path, config_bytes(r=32), weights_bytes(rank=40))
    assert "pickled data is never loaded" in error_of(tmp_path, weights=b"PK\x03\x04" + bytes(100))
    assert "contains no matrix" in error_of(tmp_path, weights=b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(AdapterError, match=r"adapter_config\.json is missing"):
        read_adapter(tmp_path / "nothing")


def test_adapter_for_other_shapes_is_rejected(tmp_path: Path):
    form = read_adapter(write(tmp_path))
    with pytest.raises(AdapterError, match="maps 16 to 8, the model's maps 16 to 9"):
        check_fit(form, MODULES | {"layers.1.self_attn.v_proj": (16, 9)})
    with pytest.raises(AdapterError, match=r"has no module 'layers\.0\.self_attn\.q_proj'"):
        check_fit(form, {})


@pytest.mark.parametrize(
    ("model_type", "architecture", "is_same_family"),
    [
        ("llama", "LlamaForCausalLM", True),
        ("mistral", "LlamaForCausalLM", False),
        ("llama", "MistralForCausalLM", False),
        ("mistral", "MixtralForCausalLM", False),
        ("gemma", "Gemma3ForConditionalGeneration", True),
        ("gemma3_text", "Gemma3ForCausalLM", True),
        ("qwen2", "Qwen2MoeForCausalLM", True),
        ("gpt_oss", "GptOssForCausalLM", True),
        ("deepseek_v3", "DeepseekV3ForCausalLM", True),
        (None, "LlamaForCausalLM", True),
        ("mistral", "", True),
    ],
)
def test_adapter_for_another_family_is_rejected_even_if_its_shapes_fit(
    model_type: str | None, architecture: str, is_same_family: bool, tmp_path: Path
):
    form = read_adapter(write(tmp_path, config_bytes(model_type=model_type)))
    if is_same_family:
        check_fit(form, MODULES, architecture)
        return
    with pytest.raises(AdapterError, match=f"adapter_config.json: 'model_type' is '{model_type}'.*{architecture}"):
        check_fit(form, MODULES, architecture)


@given(st.binary(max_size=300), st.integers(0, 1200), st.integers(0, 255))
def test_damaged_files_raise_only_adapter_errors(garbage: bytes, position: int, value: int):
    damaged = bytearray(weights_bytes())
    damaged[position % len(damaged)] = value
    with tempfile.TemporaryDirectory() as name:
        for config, weights in ((garbage, None), (None, garbage), (None, bytes(damaged))):
            try:
                read_adapter(write(Path(name), config, weights))
            except AdapterError as error:
                message = str(error)
            else:
                message = "adapter_"
            assert "adapter_" in message


@pytest.mark.parametrize("value", [None, 1, [], {}, "x", True, 1e9, -1])
def test_any_value_in_any_field_is_accepted_or_rejected_with_the_field(value: Any):
    for field in ("r", "lora_alpha", "target_modules", "use_rslora", "rank_pattern", "alpha_pattern", "model_type",
                  "use_dora", "bias", "modules_to_save", "init_lora_weights", "peft_type", "task_type"):  # fmt: skip
        try:
            parse_settings(config_bytes(**{field: value}))
        except AdapterError as error:
            message = str(error)
        else:
            message = field
        assert field in message
