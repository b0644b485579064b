"""Base models of LoRA adapters: the architecture and the linear layers that adapters can target.

Read from the manifest and from the headers of the weight files, without loading the model. Layers with packed weights
have no shape here. Limits that depend on the loaded model, such as memory, are checked by the engine.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from catalog.builtin import builtin_models, find_folder
from catalog.card import ModelCard, parse_model_id
from catalog.errors import CardError, FinetuneError
from catalog.manifest import FileEntry, blob_key, decode_manifest, manifest_key
from catalog.registry import Registry
from storage.errors import Damaged, Missing
from storage.objects import Objects
from weight_files.adapter_files import LAYER, ROOT
from weight_files.safetensors_header import Extent, HeaderError, header_size, parse_header, read_header

_log = logging.getLogger(__name__)

_FIRST_BYTES = 64 * 1024  # most headers are shorter
_WEIGHT = re.compile(rf"{ROOT}({LAYER}[A-Za-z0-9_.]{{1,128}})\.(weight|weight_packed|qweight)")
_EXPERTS = re.compile(rf"{ROOT}({LAYER}[A-Za-z0-9_]+)\.experts\b.*")
# Number formats in which a `weight` has the shape [out, in]. Other formats pack several values into one element.
_UNPACKED = ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I8")
_ABSORBED = ("kv_b_proj",)  # latent attention merges this weight into others, so adapters cannot target it


@dataclass(frozen=True)
class BaseModel:
    """A base model. `targets` maps module names (`layers.0.self_attn.q_proj`) to (in, out), or None if unknown."""

    architecture: str
    targets: Mapping[str, tuple[int, int] | None]


def find_base(registry: Registry, model_id: str) -> ModelCard:
    """Return the card of a model that supports LoRA adapters. Raises InvalidModelId or FinetuneError."""
    name = parse_model_id(model_id)
    resolved = registry.find(name)
    if resolved is None:
        raise FinetuneError(f"there is no model {name}: publish or alias it first")
    if "lora" not in resolved.card.capabilities:
        raise FinetuneError(f"{name} does not support fine-tunes")
    return resolved.card


async def read_base(objects: Objects, card: ModelCard) -> BaseModel | None:
    """Return the base model of a card, or None if its files are missing or unsupported. Raises StoreUnavailable."""
    try:
        folder = find_folder(card.name) if card.source == "builtin" else None
        weights = [file for file in card.files if file.path.endswith(".safetensors")]
        if folder is not None:
            architecture = builtin_models()[card.name].manifest.architecture
            headers = [await asyncio.to_thread(read_header, folder / file.path) for file in weights]
        else:
            manifest = await objects.get_bytes(manifest_key(card.revision))
            architecture = decode_manifest(manifest, card.revision).architecture
            headers = [await _stored_header(objects, file) for file in weights]
        targets = await asyncio.to_thread(targets_of, headers)
    except (Missing, Damaged, CardError, HeaderError) as error:
        _log.warning("adapters cannot be checked against their base model: %s", error, extra={"model": card.name})
        return None
    return BaseModel(architecture, targets) if targets else None


def targets_of(headers: Iterable[Mapping[str, Extent]]) -> dict[str, tuple[int, int] | None]:
    """Return the linear layers of a decoder from the headers of all weight files, except mixture-of-experts layers."""
    tensors = {name: extent for header in headers for name, extent in header.items()}
    expert_layers = {found[1] for name in tensors if (found := _EXPERTS.fullmatch(name))}  # layers.0.mlp
    targets: dict[str, tuple[int, int] | None] = {}
    for name, extent in tensors.items():
        found = _WEIGHT.fullmatch(name)
        if found is None or len(extent.shape) != 2:
            continue
        module, parts = found[1], found[1].split(".")
        if parts[-1] in _ABSORBED or ".".join(parts[:3]) in expert_layers:
            continue
        is_unpacked = found[2] == "weight" and extent.dtype in _UNPACKED
        targets[module] = (extent.shape[1], extent.shape[0]) if is_unpacked else None
    return targets


async def _stored_header(objects: Objects, file: FileEntry) -> dict[str, Extent]:
    """Read the header of a file in the object store. Raises HeaderError, Missing, StoreUnavailable."""
    key = blob_key(file.sha256)
    first = await objects.get_bytes(key, 0, _FIRST_BYTES)
    end = 8 + header_size(first, file.path, file.size_bytes)
    if end > len(first):
        first += await objects.get_bytes(key, len(first), end)
    return await asyncio.to_thread(parse_header, first[8:end], file.path, file.size_bytes)
