"""Manifest: exactly which bytes one version of a model is made of. Its SHA-256 is the model's revision.

In the object store a model lies content-addressed: every file under its own digest, the manifest under the revision,
and one small pointer per model that says which revision is current. Knows no prices, no rows, no store.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from catalog.errors import CardError

MAX_MANIFEST_BYTES = 4 * 1024 * 1024
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,127}){0,3}")

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class FileEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a model: its path inside the model's folder (no `..`, at most four parts), size and digest."""

    path: str
    size_bytes: Annotated[int, Meta(ge=0)]
    sha256: Sha256

    def __post_init__(self) -> None:
        if not is_plain_path(self.path):
            raise ValueError("a file's path must be relative, of plain letters, and without '..'")


class Recipe(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a variant was made: of the revision `base`, in the number `format`, by version `method` of the rounding.

    The same recipe makes the same files. `group_size` is None where every output has one scale.
    """

    base: Sha256
    format: str
    group_size: int | None = None
    method: int


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node needs to load one version of a model.

    `task` is the slug, `architecture` the first entry of `architectures` in `config.json`. `tool_parser` is how it
    writes calls of tools, None where its template tells; `speculation` is as in its card. `recipe` is of a model made
    from another. The four fields from `max_input_tokens` on are for embeddings and None or False elsewhere.
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
            raise ValueError("this version reads manifests of format 1 only")
        if len(set(paths)) != len(paths):
            raise ValueError("a manifest names a file twice")

    def encode(self) -> bytes:
        """Canonical JSON: keys and files sorted, no spaces; equal manifests give equal bytes. A field that younger
        versions added is left out where it says nothing, so that revisions stay what they were."""
        fields = msgspec.structs.asdict(self) | {"files": sorted(self.files, key=lambda file: file.path)}
        for name in ("tool_parser", "speculation", "recipe"):
            if fields[name] is None:
                del fields[name]
        return msgspec.json.encode(fields, order="sorted")

    @property
    def revision(self) -> str:
        return hashlib.sha256(self.encode()).hexdigest()


def is_plain_path(path: str) -> bool:
    """Whether `path` is one that a file of a model may have: it can only lead to a place inside the model's folder."""
    return _PATH.fullmatch(path) is not None and ".." not in path


def decode_manifest(data: bytes, revision: str) -> Manifest:
    """The manifest whose canonical bytes are `data`. Raises CardError unless their digest is `revision`."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise CardError(f"a manifest is over {MAX_MANIFEST_BYTES} bytes")
    if hashlib.sha256(data).hexdigest() != revision:
        raise CardError(f"the manifest does not have the digest {revision}")
    try:
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CardError(f"unreadable manifest {revision}: {error}") from error


def hash_file(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entry_of(folder: Path, path: str) -> FileEntry:
    """Hash one file of `folder`."""
    full = folder / path
    return FileEntry(path=path, size_bytes=full.stat().st_size, sha256=hash_file(full))


def is_intact(path: Path, entry: FileEntry) -> bool:
    """Whether the file at `path` has exactly the size and digest of `entry`; a missing one has not."""
    return path.is_file() and path.stat().st_size == entry.size_bytes and hash_file(path) == entry.sha256


def blob_key(sha256: str) -> str:
    return f"blobs/sha256/{sha256}"


def manifest_key(revision: str) -> str:
    return f"manifests/{revision}.json"


def pointer_key(name: str) -> str:
    """Where `{"name", "revision"}` of a model's current version lies; a digest, so that a name never forms a path."""
    return f"models/{hashlib.sha256(name.encode()).hexdigest()}.json"
