"""Find a model folder's safetensors files and its quantization config.

Reads only files directly in the folder; an index cannot name files elsewhere. Other formats, pickles above all, are
rejected by name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from engine.checkpoints.quantization import Quantization, parse_quantization
from engine.checkpoints.stored import StoredTensor, WeightsError, list_names
from weight_files.safetensors_header import parse_object, read_header

_MAX_JSON_BYTES = 32 * 1024 * 1024
_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_NOT_THE_MODEL = ("consolidated", "adapter_model")  # a copy under other tensor names; a LoRA adapter
_OLD_SETTINGS = (("quantize_config.json", "gptq"), ("quant_config.json", "awq"))


def find_safetensors(model_dir: Path) -> dict[str, StoredTensor] | None:
    """Return the tensors of the model's safetensors files, or None if there are no such files.

    Raises WeightsError or HeaderError.
    """
    if (model_dir / _SINGLE_FILE).exists():
        return _read_file(model_dir / _SINGLE_FILE)
    if (model_dir / _INDEX_FILE).exists():
        return _read_shards(model_dir)
    found = sorted(model_dir.glob("*.safetensors")) if model_dir.is_dir() else []
    found = [path for path in found if not path.name.startswith(_NOT_THE_MODEL)]
    if len(found) > 1:
        raise WeightsError(f"{_INDEX_FILE} is missing, and the folder has {len(found)} safetensors files")
    return _read_file(found[0]) if found else None


def read_quantization(model_dir: Path) -> Quantization:
    """Read the quantization from config.json or an older tool's file. Raises WeightsError or HeaderError."""
    config_path = model_dir / "config.json"
    if config_path.exists():
        config = _read_json(config_path)
        quantization = config.get("quantization_config") or config.get("compression_config")
        if quantization is None and isinstance(config.get("text_config"), dict):
            quantization = config["text_config"].get("quantization_config")
        if quantization is not None:
            return parse_quantization(quantization)
    for file, method in _OLD_SETTINGS:
        if (model_dir / file).exists():
            return parse_quantization({"quant_method": method, **_read_json(model_dir / file)})
    return parse_quantization(None)


def explain_missing_weights(model_dir: Path) -> str:
    """Return an error message for a folder without readable weights."""
    if not model_dir.is_dir():
        return f"{model_dir.name} is neither a folder nor a .gguf file"
    pickles = sorted(path.name for path in model_dir.iterdir() if path.name.endswith(_PICKLES))
    if pickles:
        return (
            f"{pickles[0]} is a pickle. Pickles can run code, so they are never loaded: "
            "convert the weights to safetensors or GGUF"
        )
    return f"neither {_SINGLE_FILE} nor {_INDEX_FILE} nor a .gguf file found; no other format is supported"


def _read_file(path: Path) -> dict[str, StoredTensor]:
    return {
        name: StoredTensor(path, name, extent.dtype, extent.shape, extent.offset, extent.size_bytes)
        for name, extent in read_header(path).items()
    }


def _read_shards(model_dir: Path) -> dict[str, StoredTensor]:
    weight_map = _read_json(model_dir / _INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{_INDEX_FILE}: weight_map is missing")
    names = {shard for shard in weight_map.values() if isinstance(shard, str)}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard):
            raise WeightsError(f"{_INDEX_FILE}: {name[:200]}: {str(shard)[:200]!r} is not a shard's file name")
    missing = sorted(shard for shard in names if not (model_dir / shard).is_file())
    if missing:
        raise WeightsError(f"{_INDEX_FILE}: {list_names(missing, 'shard')} missing")
    shards = {shard: _read_file(model_dir / shard) for shard in sorted(names)}
    absent = [name for name, shard in weight_map.items() if name not in shards[shard]]
    if absent:
        raise WeightsError(f"{_INDEX_FILE}: {list_names(absent)} not in the shard that the index names")
    return {name: shards[shard][name] for name, shard in weight_map.items()}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > _MAX_JSON_BYTES or not path.is_file():
            raise WeightsError(f"{path.name} is not a file or is too large ({size_bytes} bytes)")
        text = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"{path.name} cannot be read: {error.strerror}") from None
    return parse_object(text, path.name)
