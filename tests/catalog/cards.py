"""Cards and small model folders for tests."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from catalog.card import CardFacts, ModelCard, card_of, manifest_of
from catalog.manifest import FileEntry

CREATED_AT = datetime(2026, 11, 20, 10, 27, 29, 131_000, tzinfo=UTC)
FILE = FileEntry("model.safetensors", 10, "0" * 64)


def chat_facts(name: str = "@cf/acme/chat", **changes: Any) -> CardFacts:
    values = {
        "name": name,
        "task": "Text Generation",
        "description": "A chat model",
        "schema": "text_generation_legacy",
        "context_window": 2048,
        "created_at": CREATED_AT,
        **changes,
    }
    return msgspec.convert(values, CardFacts)


def embedder_facts(name: str = "@cf/acme/embed", **changes: Any) -> CardFacts:
    values = {
        "name": name,
        "task": "Text Embeddings",
        "description": "An embedder",
        "schema": "text_embeddings",
        "context_window": 256,
        "max_input_tokens": 256,
        "output_dimensions": 384,
        "pooling": "mean",
        "default_max_tokens": 1,
        "created_at": CREATED_AT,
        **changes,
    }
    return msgspec.convert(values, CardFacts)


def chat_card(name: str = "@cf/acme/chat", **changes: Any) -> ModelCard:
    facts = chat_facts(name, **changes)
    return card_of(facts, manifest_of(facts, "LlamaForCausalLM", (FILE,)), "builtin")


def embedder_card(name: str = "@cf/acme/embed", **changes: Any) -> ModelCard:
    facts = embedder_facts(name, **changes)
    return card_of(facts, manifest_of(facts, "BertModel", (FILE,)), "builtin")


def safetensors(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """Return a safetensors file with these tensors: name -> (dtype, shape, data)."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write_model_folder(folder: Path, *, weight_bytes: int = 4096, seed: int = 0) -> Path:
    """Write a folder in the Hugging Face layout with one tensor of noise."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = random.Random(seed).randbytes(weight_bytes)
    config = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 1024}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "README.md").write_text("not part of the model")
    (folder / "model.safetensors").write_bytes(safetensors({"weight": ("U8", [weight_bytes], noise)}))
    return folder
