"""A LLaVA with random weights, the tokenizer of stories260K and a token for images."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import CLIPImageProcessorPil, LlavaConfig, LlavaForConditionalGeneration

SIDE, PATCH = 30, 6
NUM_IMAGE_TOKENS = (SIDE // PATCH) ** 2  # 25: more than a block, and no multiple of one
TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p['type'] == 'image' %}<image>{% else %}{{ p['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)


def tiny_llava(folder: Path, test_data: Path) -> Path:
    """Write the model to `folder` and return the folder."""
    stories = test_data / "models/stories260K"
    tokenizer = Tokenizer.from_file(str(stories / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<image>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    image_token = tokenizer.token_to_id("<image>")
    config = json.loads((stories / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    text = {
        "model_type": "llama", "vocab_size": 520, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "eos_token_id": None,
        "bos_token_id": 1,
    }  # fmt: skip
    vision = {
        "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 2, "image_size": SIDE, "patch_size": PATCH, "projection_dim": 32,
    }  # fmt: skip
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(
        LlavaConfig(text_config=text, vision_config=vision, image_token_index=image_token)
    )
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.ndim > 1:
                tensor.normal_(std=0.12)
            elif "norm" not in name:
                tensor.normal_(std=0.05)
    model.save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}).save_pretrained(
        folder
    )
    return folder
