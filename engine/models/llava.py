"""LLaVA: the text part is Llama, Mistral or Qwen 2. `engine/tasks/one_pass/vision_encoder.py` runs the vision part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from engine.models.config import ModelConfig
from engine.models.fields import Fields
from engine.models.llama import llama
from engine.models.mistral import mistral
from engine.models.qwen import qwen2

_IMAGE_TENSORS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
_FAMILIES: Mapping[str, Callable[[Fields], ModelConfig]] = {"llama": llama, "mistral": mistral, "qwen2": qwen2}
# Published configs leave these fields out.
_LLAMA_DEFAULTS = {
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}


def llava(fields: Fields) -> ModelConfig:
    kind = fields.word("model_type", "llama")
    if kind not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise fields.refusal("model_type", f"not supported as the text part of this architecture ({known} are)")
    if kind == "llama":
        fields = fields.with_defaults(**_LLAMA_DEFAULTS)
    return replace(_FAMILIES[kind](fields), ignored=_IMAGE_TENSORS)
