"""Model folders in the Hugging Face layout and GGUF files: validate the files and derive a card from them.

Only safetensors, GGUF, ONNX, JSON and tokenizer files are accepted. Everything that executes code when it is loaded
(pickles, Python files, `auto_map`, custom module classes) is rejected without an option to allow it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from catalog.card import CardFacts, parse_facts, parse_model_id
from catalog.errors import PublishError
from catalog.listed import ListedModel, listed_models
from catalog.manifest import is_plain_path
from telemetry.clock import SYSTEM_CLOCK
from weight_files.safetensors_header import HeaderError, read_header

_MODEL_SUFFIXES = (".safetensors", ".onnx", ".json", ".txt", ".jinja")
_SENTENCEPIECE = ("source.spm", "target.spm", "sentencepiece.bpe.model", "spiece.model")  # tokenizers without JSON
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz")
_CODE = (".py", ".pyc", ".so", ".dll", ".dylib")
_MAX_CONFIG_BYTES = 1024 * 1024
_INDEX = "model.safetensors.index.json"
_IMAGE_ENCODER = "mmproj"  # file name prefix of a vision encoder beside a GGUF text model
_PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf")
_MAX_PARTS = 1000
_PIPELINE_INDEX = "model_index.json"  # file of a folder in the diffusers layout, which has a subfolder per component
_VISION_CHAT = (
    "LlavaForConditionalGeneration",
    "Gemma3ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
)  # text models that take images
# Context windows of architectures whose published configs leave them out.
_DEFAULT_WINDOWS = {"Gemma3ForConditionalGeneration": 131_072, "Llama4ForConditionalGeneration": 131_072}
_TEXT_PART_ONLY = ("Llama4ForConditionalGeneration",)  # text models whose vision part is ignored
_REWRITERS = {
    "MarianMTModel": "Translation",
    "M2M100ForConditionalGeneration": "Translation",
    "BartForConditionalGeneration": "Summarization",
    "BigBirdPegasusForConditionalGeneration": "Summarization",
    "LEDForConditionalGeneration": "Summarization",
    "LongT5ForConditionalGeneration": "Summarization",
    "MT5ForConditionalGeneration": "Summarization",
    "PegasusForConditionalGeneration": "Summarization",
    "T5ForConditionalGeneration": "Summarization",
}  # architecture -> task
_CLASSIFIER = "ForSequenceClassification"
_APERTIUM = "Apertium"  # a model without weights, which a program on the node runs
_SPEECH_ARCHITECTURES = ("WhisperForConditionalGeneration", "MoonshineForConditionalGeneration")
_DESCRIPTION_ARCHITECTURES = (
    "BlipForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
)
# Programs of the operating system: the folder has only a `config.json` that names the program.
_PROGRAM_ARCHITECTURES = ("SpeechProgram",)
_SPEAKING_ARCHITECTURES = ("VitsModel", *_PROGRAM_ARCHITECTURES)
# Endings of the names of architectures that have no tokenizer.
_IMAGE_ONLY = ("ForImageClassification", "ForObjectDetection")
_WITHOUT_TOKENIZER = (*_IMAGE_ONLY, "PpOcr", "SileroVad", "ForWordClassification")


@dataclass(frozen=True)
class GgufModel:
    """The content of a GGUF header: the model's `config.json`, and its name and license, which may be empty."""

    config: dict[str, Any]
    description: str = ""
    license: str = ""


GgufReader = Callable[[Path, bool], GgufModel]
"""Reads the header of a GGUF file, with its tokenizer if the flag is set. Raises PublishError."""


@dataclass(frozen=True)
class ModelFolder:
    """A validated model: its folder, its `config.json` and the sorted relative paths of its model files.

    `gguf` is set if the weights are a GGUF file, and `is_single_file` if the model has no other files.
    """

    path: Path
    config: dict[str, Any]
    files: tuple[str, ...]
    gguf: GgufModel | None = None
    is_single_file: bool = False

    @property
    def model_path(self) -> Path:
        """The path that the engine opens: the folder, or the GGUF file (the first of its parts)."""
        return self.path / self.files[0] if self.is_single_file else self.path

    @property
    def architecture(self) -> str:
        """The first entry of `architectures` in `config.json`."""
        return str(self.config["architectures"][0])


def is_model_file(path: str) -> bool:
    """Return True if a file of this name belongs to a model. Documents, images and other weight formats do not."""
    return path.endswith((*_MODEL_SUFFIXES, *_SENTENCEPIECE)) and not any(
        part.startswith(".") for part in path.split("/")
    )


def gguf_parts(name: str) -> tuple[str, ...]:
    """Return the names of all parts of a GGUF file, given its name or that of its first part. Raises PublishError."""
    part = _PART.fullmatch(name)
    if part is None:
        return (name,)
    if int(part[2]) != 1 or not 1 <= int(part[3]) <= _MAX_PARTS:
        raise PublishError(f"{name} is one of several parts: give the first one, {part[1]}-00001-of-{part[3]}.gguf")
    return tuple(f"{part[1]}-{number:05d}-of-{part[3]}.gguf" for number in range(1, int(part[3]) + 1))


def inspect_model(path: Path, read_gguf: GgufReader) -> ModelFolder:
    """Validate a folder, or a single GGUF file. Raises PublishError naming the file and the reason."""
    if path.suffix == ".gguf" and path.is_file():
        return _inspect_gguf(path.parent, path.name, (), read_gguf)
    if path.is_dir() and not any(path.glob("*.safetensors")):
        names = sorted(file.name for file in path.glob("*.gguf") if not file.name.startswith(_IMAGE_ENCODER))
        models = [name for name in names if (part := _PART.fullmatch(name)) is None or int(part[2]) == 1]
        if len(models) > 1:
            raise PublishError(f"{path} has {len(models)} GGUF models ({', '.join(models[:5])}): give one of the files")
        if models:
            return _inspect_gguf(path, models[0], _model_files(path), read_gguf)
    return inspect_folder(path)


def inspect_folder(path: Path) -> ModelFolder:
    """Validate a folder with safetensors. Raises PublishError naming the file and the reason."""
    if not path.is_dir():
        raise PublishError(f"{path} is not a folder")
    files = _model_files(path)
    if _PIPELINE_INDEX in files:
        return _inspect_pipeline(path, files)
    if "config.json" not in files:
        raise PublishError("config.json is missing")
    config = _read_json(path, "config.json")
    _check_architectures(config, "config.json")
    architecture = str(config["architectures"][0])
    if architecture in (*_PROGRAM_ARCHITECTURES, _APERTIUM):
        return ModelFolder(path, config, ("config.json",))
    has_tokenizer = "tokenizer.json" in files or any(name in files for name in _SENTENCEPIECE)
    if not has_tokenizer and not architecture.endswith((*_WITHOUT_TOKENIZER, "VitsModel")):
        raise PublishError("tokenizer.json is missing: save the tokenizer with transformers, which writes it")
    _check_weights(path, files)
    return ModelFolder(path, config, files)


def _inspect_pipeline(path: Path, files: tuple[str, ...]) -> ModelFolder:
    """Validate a folder in the layout of diffusers. Files of half precision beside the same files in full precision,
    and files of the whole model beside the components, are left out."""
    files = tuple(
        file
        for file in files
        if file == _PIPELINE_INDEX or ("/" in file and not (".fp16." in file and file.replace(".fp16.", ".") in files))
    )
    index = _read_json(path, _PIPELINE_INDEX)
    name = index.get("_class_name")
    if not isinstance(name, str) or not name.endswith("Pipeline"):
        raise PublishError(f"{_PIPELINE_INDEX}: _class_name is missing")
    _check_weights(path, files)
    return ModelFolder(path, {"architectures": [name]}, files)


def _inspect_gguf(folder: Path, name: str, others: tuple[str, ...], read_gguf: GgufReader) -> ModelFolder:
    """Validate a GGUF file in `folder` with `others`, the model files beside it."""
    parts = gguf_parts(name)
    for part in parts:
        if not (folder / part).is_file():
            raise PublishError(f"{part} is missing")
        if not is_plain_path(part):
            raise PublishError(f"{part}: a file name may contain only letters, digits, dots, hyphens and underscores")
    header = read_gguf(folder / name, "tokenizer.json" not in others)
    # The engine reads config.json in preference to the header.
    config = _read_json(folder, "config.json") if "config.json" in others else header.config
    _check_architectures(config, "config.json" if "config.json" in others else name)
    return ModelFolder(folder, config, (*parts, *others), header, is_single_file=not others)


def _model_files(path: Path) -> tuple[str, ...]:
    """Return the model files of a folder, except GGUF files. Raises PublishError for pickles and code."""
    found = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    found = [file for file in found if not any(part.startswith(".") for part in file.split("/"))]
    for file in found:
        if file.endswith(_PICKLES):
            raise PublishError(f"{file}: pickle files are not supported; weights must be safetensors or GGUF")
        if file.endswith(_CODE):
            raise PublishError(f"{file}: a model must not contain code")
    files = tuple(file for file in found if is_model_file(file))
    if any(file.endswith(".safetensors") for file in files):  # an ONNX file beside them has the same weights
        files = tuple(file for file in files if not file.endswith(".onnx"))
    for file in files:
        _check_for_code(path, file)
    return files


def _check_architectures(config: dict[str, Any], origin: str) -> None:
    architectures = config.get("architectures")
    if not (isinstance(architectures, list) and architectures and isinstance(architectures[0], str)):
        raise PublishError(f"{origin}: architectures is missing")


def facts_of(
    folder: ModelFolder, name: str | None, card: Path | None, *, supports_tools: Callable[[Path], bool]
) -> CardFacts:
    """Return the facts of a card file, or facts derived from the folder and completed for a listed model.

    `name` takes precedence over the card's name and is required without a card. `supports_tools` returns True if the
    chat template of the model at a path has a supported tool call format. Raises PublishError, CardError, OSError.
    """
    if card is not None:
        facts = parse_facts(card.read_text("utf-8"), str(card))
        return facts if name is None else msgspec.structs.replace(facts, name=name)
    if name is None:
        raise PublishError("a model without a card needs a name")
    facts = derive_facts(folder, name, SYSTEM_CLOCK.now())
    if facts.task == "Text Generation" and supports_tools(folder.model_path):
        facts = msgspec.structs.replace(facts, capabilities=facts.capabilities | {"function_calling"})
    listed = listed_models().get(name)
    return facts if listed is None else facts_as_listed(facts, listed)


def derive_facts(folder: ModelFolder, name: str, now: datetime) -> CardFacts:
    """Return the facts of a model without a card, derived from its files. They have no prices.

    Raises InvalidModelId for an invalid name, and PublishError if the task cannot be derived.
    """
    parse_model_id(name)
    common = {"name": name, "created_at": now, "tags": ("published",)}
    is_vision = folder.architecture in _VISION_CHAT and not _describes_images(name)
    if folder.architecture.endswith("ForCausalLM") or is_vision or folder.architecture in _TEXT_PART_ONLY:
        text_config = folder.config.get("text_config") or folder.config
        window = text_config.get("max_position_embeddings", _DEFAULT_WINDOWS.get(folder.architecture, 2048))
        header = folder.gguf or GgufModel(folder.config)
        facts = common | {
            "task": "Text Generation",
            "description": header.description or f"{folder.architecture} model",
            "license": header.license,
            "schema": "text_generation_legacy",
            # JSON mode works with every model; tool calls depend on the chat template.
            "capabilities": [
                "json_mode",
                "logit_bias",
                "multiple_choices",
                "vision" if is_vision else "lora",
            ],
            "context_window": window,
            "default_max_tokens": min(256, window) if isinstance(window, int) else 256,
        }
    elif folder.architecture in _SPEECH_ARCHITECTURES:
        facts = common | {
            "task": "Automatic Speech Recognition",
            "description": f"{folder.architecture} model",
            "schema": "speech_recognition",
            "context_window": folder.config.get("max_target_positions", 448),
            "default_max_tokens": 192,
        }
    elif folder.architecture.endswith("Pipeline"):
        facts = common | _pipeline_facts(folder)
    elif folder.architecture in (*_REWRITERS, _APERTIUM) or folder.architecture.endswith(_CLASSIFIER):
        facts = common | _text_facts(folder)
    elif folder.architecture in _SPEAKING_ARCHITECTURES:
        facts = common | {
            "task": "Text-to-Speech",
            "description": f"{folder.architecture} model",
            "schema": "text_to_speech",
            "context_window": 5000,
        }
    elif folder.architecture in _DESCRIPTION_ARCHITECTURES:
        facts = common | {
            "task": "Image-to-Text",
            "description": f"{folder.architecture} model",
            "schema": "image_to_text",
            "context_window": (window := folder.config.get("text_config", {}).get("max_position_embeddings", 512)),
            "default_max_tokens": min(256, window) if isinstance(window, int) else 256,
        }
    elif folder.architecture.endswith(_IMAGE_ONLY):
        facts = common | _image_facts(folder)
    elif "modules.json" in folder.files and "1_Pooling/config.json" in folder.files:
        facts = common | _embedding_facts(folder)
    else:
        raise PublishError(f"the task of {folder.architecture} is unknown: pass a card")
    try:
        return msgspec.convert(facts, CardFacts)
    except msgspec.ValidationError as error:
        raise PublishError(f"{'config.json' if folder.gguf is None else folder.files[0]}: {error}") from error


def _describes_images(name: str) -> bool:
    """Return True if a model is listed for the task Image-to-Text."""
    listed = listed_models().get(name)
    return listed is not None and listed.task == "Image-to-Text"


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
    elif facts.task != "Text Generation":
        changes |= {"schema": listed.schema}
    return msgspec.structs.replace(facts, **changes)


def _pipeline_facts(folder: ModelFolder) -> dict[str, Any]:
    schema = "text_to_image"
    if folder.architecture.startswith("Flux"):
        schema = "text_to_image_multipart" if folder.architecture.startswith("Flux2") else "text_to_image_base64"
    return {
        "task": "Text-to-Image",
        "description": f"{folder.architecture} model",
        "schema": schema,
        "context_window": 77,
        "default_max_tokens": 1,
    }


def _text_facts(folder: ModelFolder) -> dict[str, Any]:
    """Return the facts of a model that classifies, translates or summarizes texts."""
    window = folder.config.get("max_position_embeddings", 512)
    facts = {"description": f"{folder.architecture} model", "context_window": window, "default_max_tokens": 1}
    if folder.architecture.endswith(_CLASSIFIER):
        is_reranker = len(folder.config.get("id2label", ("0", "1"))) == 1
        return facts | {"task": "Text Classification", "schema": "reranker" if is_reranker else "text_classification"}
    task = _REWRITERS.get(folder.architecture, "Translation")
    return facts | {"task": task, "schema": task.lower()}


def _image_facts(folder: ModelFolder) -> dict[str, Any]:
    """Return the facts of a model that takes an image only, whose context has no tokens."""
    is_classifier = folder.architecture.endswith("ForImageClassification")
    return {
        "task": "Image Classification" if is_classifier else "Object Detection",
        "description": f"{folder.architecture} model",
        "schema": "image_classification" if is_classifier else "object_detection",
        "context_window": 1,
        "default_max_tokens": 1,
    }


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
    if not weights and any(file.endswith(".onnx") for file in files):
        return
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
