"""Vision chat models with random weights, the tokenizer of stories260K and tokens for images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer

# family -> class of the model, of the image processor and its options, the template's text for an image, other tokens
FAMILIES: dict[str, tuple[str, str, dict[str, Any], str, tuple[str, ...]]] = {
    "gemma3": (
        "Gemma3ForConditionalGeneration",
        "Gemma3ImageProcessorPil",
        {"size": {"height": 40, "width": 40}},
        "<start_of_image>",
        ("<image_soft_token>", "<end_of_image>"),
    ),
    "mistral3": (
        "Mistral3ForConditionalGeneration",
        "PixtralImageProcessorPil",
        {"size": {"longest_edge": 56}, "patch_size": {"height": 4, "width": 4}},
        "[IMG]",
        ("[IMG_BREAK]", "[IMG_END]"),
    ),
    "qwen2_vl": (
        "Qwen2VLForConditionalGeneration",
        "Qwen2VLImageProcessorPil",
        {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 64, "longest_edge": 40 * 64}},
        "<|image_pad|>",
        (),
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2VLImageProcessorPil",
        {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 64, "longest_edge": 40 * 64}},
        "<|image_pad|>",
        (),
    ),
}
_TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p['type'] == 'image' %}IMAGE{% else %}{{ p['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %} assistant:"
)
_TEXT: dict[str, Any] = {
    "vocab_size": 520, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "eos_token_id": None, "bos_token_id": 1,
    "pad_token_id": None, "head_dim": 16,
}  # fmt: skip
_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
_QWEN_TEXT = _TEXT | {"rope_parameters": _ROPE, "tie_word_embeddings": False}


def _settings(family: str, token_of: dict[str, int]) -> dict[str, Any]:
    """Return the fields of the model's config."""
    if family == "gemma3":
        text = _TEXT | {"model_type": "gemma3_text", "query_pre_attn_scalar": 16, "sliding_window": 384}
        text["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
        vision = {
            "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 40, "patch_size": 4, "vision_use_head": False,
        }  # fmt: skip
        return {
            "text_config": text, "vision_config": vision, "mm_tokens_per_image": 25,
            "image_token_index": token_of["<image_soft_token>"], "boi_token_index": token_of["<start_of_image>"],
            "eoi_token_index": token_of["<end_of_image>"],
        }  # fmt: skip
    if family == "mistral3":
        vision = {
            "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 56, "patch_size": 4, "head_dim": 16,
        }  # fmt: skip
        return {
            "text_config": _TEXT | {"model_type": "mistral", "sliding_window": None}, "vision_config": vision,
            "image_token_index": token_of["[IMG]"], "spatial_merge_size": 2,
        }  # fmt: skip
    if family == "qwen2_vl":
        vision = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 2, "patch_size": 4}
    else:
        vision = {
            "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4,
            "out_hidden_size": 64, "window_size": 16, "fullatt_block_indexes": [1],
        }  # fmt: skip
    return {"text_config": _QWEN_TEXT, "vision_config": vision, "image_token_id": token_of["<|image_pad|>"]}


def tiny_vision(family: str, folder: Path, test_data: Path) -> Path:
    """Write a model of the family to `folder` and return the folder."""
    model_class, processor_class, options, image, others = FAMILIES[family]
    stories = test_data / "models/stories260K"
    tokenizer = Tokenizer.from_file(str(stories / "tokenizer.json"))
    tokens = [image, *others]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((stories / "tokenizer_config.json").read_text())
    template = _TEMPLATE.replace("IMAGE", image)
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    model_type: Any = getattr(transformers, model_class)
    torch.manual_seed(0)
    token_of = {text: tokenizer.token_to_id(text) for text in tokens}
    model = model_type(model_type.config_class(**_settings(family, token_of)))
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.ndim > 1:
                tensor.normal_(std=0.12)
            elif "q_norm" in name or "k_norm" in name:
                tensor.fill_(2.0)  # sharp attention, so that the text depends on what each token sees
            elif "norm" not in name:
                tensor.normal_(std=0.05)
    model.save_pretrained(folder)
    getattr(transformers, processor_class)(**options).save_pretrained(folder)
    return folder
