"""Read the tokenizer's definition and configuration from a model's folder.

`tokenizer.json` takes precedence over the vocabulary in a GGUF file. Other formats are refused by name. File sizes are
bounded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from engine.checkpoints.gguf_file import GgufError, find_gguf
from engine.checkpoints.gguf_tokenizer import read_gguf_tokenizer
from engine.text.definition import complete, special_tokens_of

MAX_DEFINITION_BYTES = 256 * 1024 * 1024  # the largest published vocabularies take 35 MB
MAX_CONFIG_BYTES = 32 * 1024 * 1024

Definition = dict[str, Any]

_OTHER_FORMATS = (
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model", "qwen.tiktoken", "vocab.json",
    "vocab.txt",
)  # fmt: skip


class TokenizerUnusable(Exception):
    """The model's tokenizer files are missing, damaged or of an unsupported kind."""


def read_definition(model_dir: Path) -> tuple[Definition, Definition]:
    """Return the definition with all added tokens, and the configuration.

    Raises TokenizerUnusable, OSError, and KeyError, TypeError or ValueError if the definition is damaged.
    """
    config = _read_json(model_dir / "special_tokens_map.json", MAX_CONFIG_BYTES) or {}
    config |= _read_json(model_dir / "tokenizer_config.json", MAX_CONFIG_BYTES) or {}
    definition = _read_json(model_dir / "tokenizer.json", MAX_DEFINITION_BYTES)
    if definition is None:
        definition, own_config = _read_gguf(model_dir)
        config = own_config | config
    _check(definition)
    complete(definition, config, special_tokens_of(config))
    return definition, config


def _check(definition: Definition) -> None:
    model = definition.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list) or not model["vocab"]:
        raise TokenizerUnusable("tokenizer.json: model.vocab is missing")
    for index, token in enumerate(definition.setdefault("added_tokens", [])):
        if not (isinstance(token["content"], str) and isinstance(token["id"], int) and token["id"] >= 0):
            raise TokenizerUnusable(f"tokenizer.json: added_tokens[{index}] has no valid content and id")


def _read_gguf(model_dir: Path) -> tuple[Definition, Definition]:
    """Return definition and configuration from a GGUF file's header. Raises TokenizerUnusable if there is none."""
    try:
        path = find_gguf(model_dir)
        if path is not None:
            return read_gguf_tokenizer(path)
    except GgufError as error:
        raise TokenizerUnusable(str(error)) from error
    other = next((name for name in _OTHER_FORMATS if (model_dir / name).exists()), None)
    remedy = f", and {other} is not supported: save the tokenizer with transformers, which writes tokenizer.json"
    raise TokenizerUnusable("tokenizer.json is missing" + (remedy if other else ""))


def _read_json(path: Path, max_bytes: int) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if the file does not exist. Raises TokenizerUnusable, OSError."""
    if not path.exists():
        return None
    data = _read_file(path, max_bytes)
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise TokenizerUnusable(f"{path.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerUnusable(f"{path.name} is not a JSON object")
    return value


def _read_file(path: Path, max_bytes: int) -> bytes:
    if path.stat().st_size > max_bytes:
        raise TokenizerUnusable(f"{path.name} is over {max_bytes} bytes")
    return path.read_bytes()
