"""Read a model's config: find the function of its architecture and call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.checkpoints.gguf_config import read_gguf_config
from engine.checkpoints.gguf_file import GgufError, find_gguf
from engine.models.cohere2 import cohere2
from engine.models.config import ModelConfig, UnsupportedModel
from engine.models.deepseek import deepseek_v2, deepseek_v3
from engine.models.fields import Fields, read_fields
from engine.models.gemma import gemma2, gemma3
from engine.models.glm4 import glm4
from engine.models.gpt_oss import gpt_oss
from engine.models.granite import granite
from engine.models.llama import llama
from engine.models.llama4 import llama4
from engine.models.llava import llava
from engine.models.mistral import mistral, mistral3, mixtral
from engine.models.olmo2 import olmo2
from engine.models.phi3 import phi3
from engine.models.qwen import qwen2, qwen2_moe, qwen2_vl, qwen3, qwen3_moe
from engine.models.smollm3 import smollm3
from engine.models.starcoder2 import starcoder2

ARCHITECTURES: Mapping[str, Callable[[Fields], ModelConfig]] = {
    "Cohere2ForCausalLM": cohere2,
    "DeepseekV2ForCausalLM": deepseek_v2,
    "DeepseekV3ForCausalLM": deepseek_v3,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "Gemma3ForConditionalGeneration": gemma3,
    "Glm4ForCausalLM": glm4,
    "GptOssForCausalLM": gpt_oss,
    "GraniteForCausalLM": granite,
    "Llama4ForCausalLM": llama4,
    "Llama4ForConditionalGeneration": llama4,
    "LlamaForCausalLM": llama,
    "Mistral3ForConditionalGeneration": mistral3,
    "LlavaForConditionalGeneration": llava,
    "MistralForCausalLM": mistral,
    "MixtralForCausalLM": mixtral,
    "Olmo2ForCausalLM": olmo2,
    "Phi3ForCausalLM": phi3,
    "Qwen2ForCausalLM": qwen2,
    "Qwen2MoeForCausalLM": qwen2_moe,
    "Qwen2VLForConditionalGeneration": qwen2_vl,
    "Qwen2_5_VLForConditionalGeneration": qwen2_vl,
    "Qwen3ForCausalLM": qwen3,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "SmolLM3ForCausalLM": smollm3,
    "Starcoder2ForCausalLM": starcoder2,
}
# Architectures that were published with Python code before transformers supported them. This code is never run.
_PUBLISHED_WITH_CODE = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Phi3ForCausalLM")
# Fields beside `text_config` that also apply to the text part, unless it has its own.
_OUTER = ("eos_token_id", "bos_token_id")


def read_config(model_dir: Path) -> ModelConfig:
    """Read the config of the checkpoint in `model_dir`. End tokens come from `generation_config.json` if it exists.

    A GGUF file is read only if there is no `config.json`. Raises UnsupportedModel.
    """
    path = model_dir / "config.json"
    if not path.exists():
        try:
            gguf_path = find_gguf(model_dir)
            return parse_config(read_fields(path).raw if gguf_path is None else read_gguf_config(gguf_path))
        except GgufError as error:
            raise UnsupportedModel(str(error)) from error
    config = parse_config(read_fields(path).raw)
    generation_path = model_dir / "generation_config.json"
    if not generation_path.exists():
        return config
    eos_token_ids = read_fields(generation_path).token_ids("eos_token_id", config.vocab_size)
    return replace(config, eos_token_ids=eos_token_ids) if eos_token_ids else config


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Return the ModelConfig of parsed JSON. Raises UnsupportedModel naming the architecture or the field."""
    architecture = _architecture(raw)
    family = ARCHITECTURES.get(architecture)
    if family is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModel(f"architecture {architecture!r} is not supported (supported: {known})")
    fields = Fields(raw, "config.json")
    if "text_config" in fields:
        text = fields.inner("text_config")
        outer = {name: raw[name] for name in _OUTER if raw.get(name) is not None and name not in text}
        if (
            raw.get("tie_word_embeddings") is not None
        ):  # the outer field decides, because the head is outside the text part
            outer["tie_word_embeddings"] = raw["tie_word_embeddings"]
        fields = Fields({**text.raw, **outer}, text.where)
    return family(Fields({**fields.raw, "architecture": architecture}, fields.where))


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise UnsupportedModel(f"config.json: architectures={str(names)[:200]}: expected a list with one name")
    if raw.get("auto_map") and names[0] not in _PUBLISHED_WITH_CODE:
        raise UnsupportedModel("config.json: auto_map refers to code in the checkpoint, which is never run")
    return names[0]
