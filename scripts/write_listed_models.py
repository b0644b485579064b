"""Update `catalog/listed.jsonl` from a file of facts about public models: `python -m scripts.write_listed_models FILE`.

Ids, tasks, prices, context windows, capabilities and dates come from the file. Descriptions and successors are written
by hand and kept, as are models that are not in the file. A model in the file without a description is an error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from catalog.listed import ListedModel

LIST = Path(__file__).parent.parent / "catalog" / "listed.jsonl"

# What takes and gives something else than others of its task.
_SCHEMAS = {
    "@cf/baai/bge-m3": "text_embeddings_multi",
    "@cf/baai/bge-reranker-base": "reranker",
    "@cf/openai/whisper-large-v3-turbo": "speech_recognition_large",
    "@cf/deepgram/nova-3": "audio_bytes",
    "@cf/deepgram/flux": "audio_bytes",
    "@cf/nvidia/nemotron-speech-streaming-en-0.6b": "audio_bytes",
    "@cf/myshell-ai/melotts": "text_to_speech_base64",
    "@cf/moondream/moondream3.1-9B-A2B": "image_tasks",
    "@cf/black-forest-labs/flux-1-schnell": "text_to_image_base64",
    "@cf/leonardo/lucid-origin": "text_to_image_base64",
    "@cf/black-forest-labs/flux-2-dev": "text_to_image_multipart",
    "@cf/black-forest-labs/flux-2-klein-4b": "text_to_image_multipart",
    "@cf/black-forest-labs/flux-2-klein-9b": "text_to_image_multipart",
}
_SCHEMA_OF_TASK = {
    "Text Embeddings": "text_embeddings",
    "Text Classification": "text_classification",
    "Translation": "translation",
    "Summarization": "summarization",
    "Automatic Speech Recognition": "speech_recognition",
    "Text-to-Speech": "text_to_speech",
    "Voice Activity Detection": "voice_activity",
    "Text-to-Image": "text_to_image",
    "Image-to-Text": "image_to_text",
    "Image Classification": "image_classification",
    "Object Detection": "object_detection",
}
_SCHEMA_OF_SHAPE = {
    "legacy": "text_generation_legacy",
    "guard": "text_generation_legacy",
    "chat_completion": "openai_chat",
    "chat_completion_or_responses": "text_generation_responses",
    "decision": "decision",
}


def line_of(facts: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Return one model of the list. `kept` is its current entry."""
    if not kept.get("description"):
        raise SystemExit(f"{facts['id']} has no description: write a line with its name and description into {LIST}")
    shape = facts.get("native_shape", "legacy")
    return {
        "name": facts["id"],
        "task": facts["task"],
        "description": kept["description"],
        "schema": _schema(facts, shape),
        "created_on": facts.get("added"),
        "native_shape": "chat_completion" if shape.startswith("chat_completion") else "legacy",
        "context_window": facts.get("context_window"),
        "default_max_tokens": facts.get("default_max_tokens", 256),
        "max_input_tokens": facts.get("max_input_tokens"),
        "output_dimensions": facts.get("embedding_dimensions"),
        "capabilities": [name for name in ("function_calling", "reasoning", "vision", "lora") if facts.get(name)],
        "prices": [[price["unit"], price["usd"], price["neurons"]] for price in facts.get("price") or ()],
        "properties": _properties(facts),
        "hub": facts.get("huggingface"),
        "is_beta": bool(facts.get("beta")),
        "is_hidden": facts["status"] == "unlisted",
        "retired_on": facts.get("planned_deprecation_date"),
        "successor": kept.get("successor"),
    }


def _schema(facts: dict[str, Any], shape: str) -> str:
    if facts["id"] in _SCHEMAS:
        return _SCHEMAS[facts["id"]]
    return _SCHEMA_OF_SHAPE[shape] if facts["task"] == "Text Generation" else _SCHEMA_OF_TASK[facts["task"]]


def _properties(facts: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: "true" for name in ("async_queue", "realtime", "require_workers_paid") if facts.get(name)
    }
    reasoning = facts.get("reasoning")
    if isinstance(reasoning, dict):
        found["reasoning_effort"] = reasoning
    return found


def written(facts: list[dict[str, Any]], listed: str) -> str:
    """Return the list as text, sorted by name, without fields that have their default value."""
    kept = {row["name"]: row for row in map(json.loads, listed.splitlines())}
    rows = kept | {model["id"]: line_of(model, kept.get(model["id"], {})) for model in facts}
    models = [msgspec.convert(row, ListedModel) for _, row in sorted(rows.items())]
    return "".join(json.dumps(msgspec.to_builtins(model), ensure_ascii=False) + "\n" for model in models)


if __name__ == "__main__":
    facts = json.loads(Path(sys.argv[1]).read_text("utf-8"))["models"]
    LIST.write_text(written(facts, LIST.read_text("utf-8")), "utf-8")
