"""Model folders in the Hugging Face layout: validate the files and derive a card from them.

Only safetensors, JSON and tokenizer files are accepted. Everything that executes code when it is loaded (pickles,
Python files, `auto_map`, custom module classes) is rejected without an option to allow it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from catalog.card import CardFacts, parse_facts, parse_model_id
from catalog.errors import PublishError
from catalog.listed import ListedModel, listed_models
from telemetry.clock import SYSTEM_CLOCK
from weight_files.safetensors_header import HeaderError, read_header

_MODEL_SUFFIXES = (".safetensors", ".json", ".txt", ".jinja")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz")
_CODE = (".py", ".pyc", ".so", ".dll", ".dylib")
_MAX_CONFIG_BYTES = 1024 * 1024
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class ModelFolder:
    """A validated model folder: its `config.json` and the sorted relative paths of its model files."""

    path: Path
    config: dict[str, Any]
    files: tuple[str, ...]

    @property
    def architecture(self) -> str:
        """The first entry of `architectures` in `config.json`."""
        return str(self.config["architectures"][0])


def is_model_file(path: str) -> bool:
    """Return True if a file of this name belongs to a model. Documents, images and other weight formats do not."""
    return path.endswith(_MODEL_SUFFIXES) and not any(part.startswith(".") for part in path.split("/"))


def inspect_folder(path: Path) -> ModelFolder:
    """Validate a folder. Raises PublishError naming the file and the reason."""
    if not path.is_dir():
        raise PublishError(f"{path} is not a folder")
    found = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    found = [file for file in found if not any(part.startswith(".") for part in file.split("/"))]
    for file in found:
        if file.endswith(_PICKLES):
            raise PublishError(f"{file}: pickle files are not supported; weights must be safetensors")
        if file.endswith(_CODE):
            raise PublishError(f"{file}: a model must not contain code")
    files = tuple(file for file in found if is_model_file(file))
    if "config.json" not in files:
        raise PublishError("config.json is missing")
    if "tokenizer.json" not in files:
        raise PublishError("tokenizer.json is missing: save the tokenizer with transformers, which writes it")
    for file in files:
        _check_for_code(path, file)
    _check_weights(path, files)
    config = _read_json(path, "config.json")
    architectures = config.get("architectures")
    if not (isinstance(architectures, list) and architectures and isinstance(architectures[0], str)):
        raise PublishError("config.json: architectures is missing")
    return ModelFolder(path, config, files)


def facts_of(
    folder: ModelFolder, name: str | None, card: Path | None, *, supports_tools: Callable[[Path], bool]
) -> CardFacts:
    """Return the facts of a card file, or facts derived from the folder and completed for a listed model.

    `name` takes precedence over the card's name and is required without a card. `supports_tools` returns True if the
    chat template in a folder has a supported tool call format. Raises PublishError, CardError, OSError.
    """
    if card is not None:
        facts = parse_facts(card.read_text("utf-8"), str(card))
        return facts if name is None else msgspec.structs.replace(facts, name=name)
    if name is None:
        raise PublishError("a model without a card needs a name")
    facts = derive_facts(folder, name, SYSTEM_CLOCK.now())
    if facts.task == "Text Generation" and supports_tools(folder.path):
        facts = msgspec.structs.replace(facts, capabilities=facts.capabilities | {"function_calling"})
    listed = listed_models().get(name)
    return facts if listed is None else facts_as_listed(facts, listed)


def derive_facts(folder: ModelFolder, name: str, now: datetime) -> CardFacts:
    """Return the facts of a model without a card, derived from its files. They have no prices.

    Raises InvalidModelId for an invalid name, and PublishError if the task cannot be derived.
    """
    parse_model_id(name)
    common = {"name": name, "created_at": now, "tags": ("published",)}
    if folder.architecture.endswith("ForCausalLM"):
        window = folder.config.get("max_position_embeddings", 2048)
        facts = common | {
            "task": "Text Generation",
            "description": f"{folder.architecture} model",
            "schema": "text_generation_legacy",
            # JSON mode works with every model; tool calls depend on the chat template.
            "capabilities": ["json_mode", "logit_bias", "lora", "multiple_choices"],
            "context_window": window,
            "default_max_tokens": min(256, window) if isinstance(window, int) else 256,
        }
    elif "modules.json" in folder.files and "1_Pooling/config.json" in folder.files:
        facts = common | _embedding_facts(folder)
    else:
        raise PublishError(f"the task of {folder.architecture} is unknown: pass a card")
    try:
        return msgspec.convert(facts, CardFacts)
    except msgspec.ValidationError as error:
        raise PublishError(f"config.json: {error}") from error


def facts_as_listed(facts: CardFacts, listed: ListedModel) -> CardFacts:
    """Return derived facts with the description, prices and schema of the listed model. Capabilities stay derived.

    Raises PublishError if the tasks differ.
    """
    if facts.task != listed.task:
        raise PublishError(f"{listed.name} is a model for {listed.task}, but these files are for {facts.task}")
    changes: dict[str, Any] = {
        "description": listed.description,
        "prices": listed.neurons_per_million,
        "created_at": listed.created_at,
        "is_beta": listed.is_beta,
    }
    if listed.native_shape == "chat_completion":
        changes |= {"schema": listed.schema, "native_shape": "chat_completion"}
    return msgspec.structs.replace(facts, **changes)


def _embedding_facts(folder: ModelFolder) -> dict[str, Any]:
    pooling = _read_json(folder.path, "1_Pooling/config.json")
    window = folder.config.get("max_position_embeddings", 512)
    length = window
    if "sentence_bert_config.json" in folder.files:
        length = _read_json(folder.path, "sentence_bert_config.json").get("max_seq_length", window)
    modules = json.loads((folder.path / "modules.json").read_text("utf-8"))
    return {
        "task": "Text Embeddings",
        "description": f"{folder.architecture} sentence embedder",
        "schema": "text_embeddings",
        "context_window": length,
        "default_max_tokens": 1,
        "max_input_tokens": length,
        "output_dimensions": pooling.get("word_embedding_dimension", folder.config.get("hidden_size")),
        "pooling": "cls" if pooling.get("pooling_mode_cls_token") is True else "mean",
        "is_normalised": any(str(module.get("type")).endswith(".Normalize") for module in modules),
    }


def _check_for_code(folder: Path, file: str) -> None:
    if file == "modules.json":
        modules = _load(folder, file)
        if not isinstance(modules, list) or not all(_is_known_module(module) for module in modules):
            raise PublishError("modules.json: only module classes of sentence-transformers are supported")
    elif file.endswith("config.json") and isinstance(config := _load(folder, file), dict) and "auto_map" in config:
        raise PublishError(f"{file}: auto_map refers to code in the model, which is never run: remove auto_map")


def _is_known_module(module: Any) -> bool:
    return isinstance(module, dict) and str(module.get("type", "")).startswith("sentence_transformers.")


def _check_weights(folder: Path, files: tuple[str, ...]) -> None:
    weights = [file for file in files if file.endswith(".safetensors")]
    if not weights:
        raise PublishError("there is no safetensors file")
    try:
        tensors = {file: read_header(folder / file) for file in weights}
    except HeaderError as error:
        raise PublishError(str(error)) from error
    if _INDEX not in files:
        return
    weight_map = _read_json(folder, _INDEX, max_bytes=64 * _MAX_CONFIG_BYTES).get("weight_map")
    if not isinstance(weight_map, dict):
        raise PublishError(f"{_INDEX}: weight_map is missing")
    for tensor, file in weight_map.items():
        if tensor not in tensors.get(str(file), ()):
            raise PublishError(f"{_INDEX}: a listed tensor is not in its file")


def _read_json(folder: Path, file: str, max_bytes: int = _MAX_CONFIG_BYTES) -> dict[str, Any]:
    value = _load(folder, file, max_bytes)
    if not isinstance(value, dict):
        raise PublishError(f"{file}: not a JSON object")
    return value


def _load(folder: Path, file: str, max_bytes: int = _MAX_CONFIG_BYTES) -> Any:
    path = folder / file
    if path.stat().st_size > max_bytes:
        raise PublishError(f"{file}: must have at most {max_bytes} bytes")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise PublishError(f"{file}: not JSON") from error
