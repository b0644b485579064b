"""Manifests: the files of one version of a model. A manifest's SHA-256 is the model's revision.

The object store is content-addressed: files are stored under their digests, manifests under their revisions, and one
small pointer object per model names the current revision.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from catalog.errors import CardError

MAX_MANIFEST_BYTES = 4 * 1024 * 1024
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,127}){0,3}")

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class FileEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a model: relative path (no `..`, at most four parts), size and digest."""

    path: str
    size_bytes: Annotated[int, Meta(ge=0)]
    sha256: Sha256

    def __post_init__(self) -> None:
        if not is_plain_path(self.path):
            raise ValueError("a file's path must be relative, without '..' and special characters")


class Accuracy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The accuracy of a variant over `compared_tokens` predictions in a text: perplexities, agreement of the most
    likely token, and the mean Kullback-Leibler divergence from the base in nats."""

    text_sha256: Sha256
    compared_tokens: int
    perplexity: float
    base_perplexity: float
    top1_agreement: float
    kl_divergence: float


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings that produced a quantized variant. The same recipe always gives the same files.

    `base` is the revision of the base model, `method` the version of the rounding algorithm. `group_size` is None if
    every output channel has one scale. `accuracy` is set for formats whose comparison is reproducible.
    """

    base: Sha256
    format: str
    group_size: int | None = None
    method: int
    accuracy: Accuracy | UnsetType = UNSET


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The data that a node needs to load one version of a model.

    `task` is the task's slug, `architecture` the first entry of `architectures` in `config.json`. `tool_parser` and
    `speculation` are those of the card. `recipe` is set for quantized variants. `max_input_tokens`,
    `output_dimensions`, `pooling` and `is_normalised` are for embedding models.
    """

    format: int = 1
    name: str
    task: str
    architecture: str
    context_window: int
    files: tuple[FileEntry, ...]
    tool_parser: str | None = None
    speculation: str | None = None
    max_input_tokens: int | None = None
    output_dimensions: int | None = None
    pooling: str | None = None
    is_normalised: bool = False
    recipe: Recipe | None = None

    def __post_init__(self) -> None:
        paths = [file.path for file in self.files]
        if self.format != 1:
            raise ValueError(f"unsupported manifest format {self.format}: expected 1")
        if len(set(paths)) != len(paths):
            raise ValueError("a manifest lists a file twice")

    def encode(self) -> bytes:
        """Return canonical JSON: equal manifests give equal bytes. Optional fields are left out if they are None."""
        fields = msgspec.structs.asdict(self) | {"files": sorted(self.files, key=lambda file: file.path)}
        for name in ("tool_parser", "speculation", "recipe"):
            if fields[name] is None:
                del fields[name]
        return msgspec.json.encode(fields, order="sorted")

    @property
    def revision(self) -> str:
        """The SHA-256 of the manifest, in hexadecimal."""
        return hashlib.sha256(self.encode()).hexdigest()


def is_plain_path(path: str) -> bool:
    """Return True if a model file may have this path. Such paths never leave the model's folder."""
    return _PATH.fullmatch(path) is not None and ".." not in path


def decode_manifest(data: bytes, revision: str) -> Manifest:
    """Decode a manifest. Raises CardError if it is invalid or its digest is not `revision`."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise CardError(f"a manifest must have at most {MAX_MANIFEST_BYTES} bytes (got {len(data)})")
    if hashlib.sha256(data).hexdigest() != revision:
        raise CardError(f"the manifest does not have the digest {revision}")
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CardError(f"unreadable manifest {revision}: {error}") from error


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. Does not read the file into memory as a whole."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entry_of(folder: Path, path: str) -> FileEntry:
    """Return the entry of a file in `folder`. Hashes the file."""
    full = folder / path
    return FileEntry(path=path, size_bytes=full.stat().st_size, sha256=hash_file(full))


def is_intact(path: Path, entry: FileEntry) -> bool:
    """Return True if the file exists and has the size and digest of `entry`."""
    return path.is_file() and path.stat().st_size == entry.size_bytes and hash_file(path) == entry.sha256


def blob_key(sha256: str) -> str:
    """Return the object store key of a file."""
    return f"blobs/sha256/{sha256}"


def manifest_key(revision: str) -> str:
    """Return the object store key of a manifest."""
    return f"manifests/{revision}.json"


def pointer_key(name: str) -> str:
    """Return the object store key of a model's pointer, `{"name", "revision"}`.

    Names are hashed: they never form a path.
    """
    return f"models/{hashlib.sha256(name.encode()).hexdigest()}.json"
