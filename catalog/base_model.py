"""What is known of a base model before any node loads it: its family, and the linear maps that adapters can change.

Read where its files lie: the manifest, and the headers of its weights, a few kilobytes of each file. A map whose weight
is packed has no shape here, and what only a loaded model tells is not asked: whether an adapter of the right shapes
fits into a node's memory, say. The process that runs the model has the last word.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from catalog.builtin import builtin_models, find_folder
from catalog.card import ModelCard
from catalog.errors import CardError
from catalog.manifest import FileEntry, blob_key, decode_manifest, manifest_key
from storage.errors import Damaged, Missing
from storage.objects import Objects
from weight_files.adapter_files import LAYER, ROOT
from weight_files.safetensors_header import Extent, HeaderError, header_size, parse_header, read_header

_log = logging.getLogger(__name__)

_FIRST_BYTES = 64 * 1024  # a header is seldom longer
_WEIGHT = re.compile(rf"{ROOT}({LAYER}[A-Za-z0-9_.]{{1,128}})\.(weight|weight_packed|qweight)")
_EXPERTS = re.compile(rf"{ROOT}({LAYER}[A-Za-z0-9_]+)\.experts\b.*")
# Types of a `weight` [out, in]; in others several are packed.
_WHOLE = ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I8")
_ABSORBED = ("kv_b_proj",)  # a latent attention's: never run as the map that it is stored as


@dataclass(frozen=True)
class BaseModel:
    """`sites`: the modules that an adapter can change (`layers.0.self_attn.q_proj`), and their (in, out)."""

    architecture: str
    sites: Mapping[str, tuple[int, int] | None]


async def read_base(objects: Objects, card: ModelCard) -> BaseModel | None:
    """None where its files are not at hand, or say nothing that is understood here. Raises StoreUnavailable."""
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
        sites = await asyncio.to_thread(sites_of, headers)
    except (Missing, Damaged, CardError, HeaderError) as error:
        _log.warning("adapters of a model cannot be held against it: %s", error, extra={"model": card.name})
        return None
    return BaseModel(architecture, sites) if sites else None


def sites_of(headers: Iterable[Mapping[str, Extent]]) -> dict[str, tuple[int, int] | None]:
    """The linear maps of a decoder's layers, from the headers of all its files; not those of a mixture of experts."""
    tensors = {name: extent for header in headers for name, extent in header.items()}
    mixtures = {found[1] for name in tensors if (found := _EXPERTS.fullmatch(name))}  # layers.0.mlp
    sites: dict[str, tuple[int, int] | None] = {}
    for name, extent in tensors.items():
        found = _WEIGHT.fullmatch(name)
        if found is None or len(extent.shape) != 2:
            continue
        module, parts = found[1], found[1].split(".")
        if parts[-1] in _ABSORBED or ".".join(parts[:3]) in mixtures:
            continue
        is_whole = found[2] == "weight" and extent.dtype in _WHOLE
        sites[module] = (extent.shape[1], extent.shape[0]) if is_whole else None
    return sites


async def _stored_header(objects: Objects, file: FileEntry) -> dict[str, Extent]:
    """Of one file in the object store. Raises HeaderError, Missing, StoreUnavailable."""
    key = blob_key(file.sha256)
    first = await objects.get_bytes(key, 0, _FIRST_BYTES)
    end = 8 + header_size(first, file.path, file.size_bytes)
    if end > len(first):
        first += await objects.get_bytes(key, len(first), end)
    return await asyncio.to_thread(parse_header, first[8:end], file.path, file.size_bytes)
