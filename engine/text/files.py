"""Read the tokenizer's definition and configuration from a model's folder.

`tokenizer.json` takes precedence, then the vocabulary in a GGUF file, then a SentencePiece model. File sizes are
bounded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from engine.checkpoints.gguf_file import GgufError, find_gguf
from engine.checkpoints.gguf_tokenizer import read_gguf_tokenizer
from engine.text.definition import complete, special_tokens_of
from engine.text.sentencepiece_model import SentencePieceError, read_sentencepiece

MAX_DEFINITION_BYTES = 256 * 1024 * 1024  # the largest published vocabularies take 35 MB
MAX_CONFIG_BYTES = 32 * 1024 * 1024

Definition = dict[str, Any]

_SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_OTHER_FORMATS = ("tiktoken.model", "qwen.tiktoken", "vocab.json", "vocab.txt")


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
        definition, own_config = _read_gguf(model_dir) or _read_sentencepiece(model_dir, config)
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


def _read_gguf(model_dir: Path) -> tuple[Definition, Definition] | None:
    """Return definition and configuration from a GGUF file's header, or None if there is no GGUF file."""
    try:
        path = find_gguf(model_dir)
        return None if path is None else read_gguf_tokenizer(path)
    except GgufError as error:
        raise TokenizerUnusable(str(error)) from error


def _read_sentencepiece(model_dir: Path, config: Definition) -> tuple[Definition, Definition]:
    """Return definition and configuration from a SentencePiece model and its `added_tokens.json`."""
    path = next((model_dir / name for name in _SENTENCEPIECE if (model_dir / name).exists()), None)
    if path is None:
        others = [name for name in _OTHER_FORMATS if (model_dir / name).exists()]
        raise TokenizerUnusable(
            f"tokenizer.json is missing, and {others[0]} lacks the rules for splitting text and the added tokens: "
            "save the tokenizer with transformers, which writes tokenizer.json"
            if others
            else "tokenizer.json is missing"
        )
    is_legacy = config.get("legacy") is not False
    try:
        definition, own_config = read_sentencepiece(_read_file(path, MAX_DEFINITION_BYTES), is_legacy=is_legacy)
    except SentencePieceError as error:
        raise TokenizerUnusable(f"tokenizer.json is missing, and {path.name} cannot be used: {error}") from error
    added = _read_json(model_dir / "added_tokens.json", MAX_CONFIG_BYTES) or {}
    own_config["added_tokens_decoder"] = {str(token_id): {"content": text} for text, token_id in added.items()}
    return definition, own_config


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
