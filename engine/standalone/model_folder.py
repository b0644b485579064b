"""A model from an unpublished folder: its task, precision, and sampling defaults according to its files.

`FolderStore` offers the folder to `Replicas` like a store. Reads only small JSON files; weights, tokenizer and
architecture are checked when they are loaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from catalog.errors import CardError
from catalog.manifest import Manifest
from engine.protocol.fields import BadInput
from engine.protocol.sampling import read_sampling
from engine.serving.model_store import LocalModel, ModelUnavailable
from engine.standalone.settings import ServeSettings

MAX_JSON_BYTES = 4 * 1024 * 1024

_DTYPES = {
    "bfloat16": "bfloat16",
    "float32": "float32",
}  # other types are converted to the fastest type on this machine
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_WEIGHTS = (".safetensors", ".gguf")


class FolderUnusable(Exception):
    """A file of the folder has an invalid value; the text names it."""


class FolderStore:
    """The model of a standalone server. `revision` identifies the folder; nothing is hashed or copied."""

    def __init__(self, settings: ServeSettings) -> None:
        """Raises FolderUnusable."""
        self._folder = settings.model_dir
        self.name = settings.model_names[0]
        self.architecture = _architecture(self._folder)
        try:
            self._manifest = Manifest(
                name=self.name,
                task=_task(self._folder),
                architecture=self.architecture,
                context_window=settings.max_model_len,
                files=(),
            )
            self.revision = self._manifest.revision
        except (ValueError, CardError) as error:
            raise FolderUnusable(str(error)) from error

    @property
    def task(self) -> str:
        return self._manifest.task

    async def current_revision(self, name: str) -> str:
        if name != self.name:
            raise ModelUnavailable(f"this server serves {self.name} only")
        return self.revision

    async def open(self, name: str, revision: str, on_progress: object = None) -> LocalModel:  # noqa: ARG002 - nothing is downloaded
        await self.current_revision(name)
        if not self._folder.exists():
            raise ModelUnavailable(f"{self._folder} does not exist any more")
        return LocalModel(name, revision, self._folder, self._manifest)

    def release(self, revision: str) -> None:
        """Do nothing: the folder stays."""


def dtype_of(folder: Path) -> str:
    """Return the precision in `config.json` as an engine dtype. Raises FolderUnusable."""
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else {}  # a GGUF file contains its own configuration
    inner = config.get("text_config")
    for fields in (config, inner if isinstance(inner, dict) else {}):
        named = fields.get("torch_dtype") or fields.get("dtype")
        if named:
            return _DTYPES.get(str(named).removeprefix("torch."), "auto")
    return "auto"


def sampling_defaults(folder: Path) -> dict[str, Any]:
    """Return sampling defaults of `generation_config.json` as body fields, with OpenAI's defaults for missing ones.
    Raises FolderUnusable."""
    path = folder / "generation_config.json"
    values = read_json(path) if path.is_file() else {}
    defaults: dict[str, Any] = {"temperature": 1.0}
    defaults |= {name: values[name] for name in _SAMPLING_FIELDS if values.get(name) is not None}
    if values.get("do_sample") is False:
        defaults["temperature"] = 0.0
    if defaults.get("top_k") == -1:
        defaults["top_k"] = 0
    try:
        read_sampling(defaults, default_max_tokens=1, context_window=1)
    except BadInput as error:
        raise FolderUnusable(f"generation_config.json: {error}") from error
    return defaults


def weight_bytes(folder: Path) -> int:
    """Return the size of the weights in bytes."""
    files = folder.iterdir() if folder.is_dir() else [folder]
    return sum(file.stat().st_size for file in files if file.name.endswith(_WEIGHTS))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a small file. Raises FolderUnusable."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise FolderUnusable(f"{path.name}: over {MAX_JSON_BYTES} bytes")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise FolderUnusable(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FolderUnusable(f"{path.name} is not JSON") from error
    if not isinstance(value, dict):
        raise FolderUnusable(f"{path.name} is not a JSON object")
    return value


def _architecture(folder: Path) -> str:
    """Return the architecture in `config.json`."""
    path = folder / "config.json"
    if not path.is_file():
        return "a GGUF model"
    named = read_json(path).get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise FolderUnusable("config.json: `architectures` is missing or empty; it must name the model's class")
    return named[0]


def _task(folder: Path) -> str:
    is_embedder = (folder / "modules.json").is_file() and (folder / "1_Pooling" / "config.json").is_file()
    return "text-embeddings" if is_embedder else "text-generation"
