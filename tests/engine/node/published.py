"""Models published to an object store without a database."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from catalog.manifest import FileEntry, Manifest, blob_key, manifest_key, pointer_key
from storage.objects import Objects


async def publish(objects: Objects, name: str, files: Mapping[str, bytes], *, context_window: int = 64) -> Manifest:
    """Publish a text-generation model with these files: blobs, manifest and pointer."""
    entries = []
    for path, data in files.items():
        entries.append(FileEntry(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))
        await objects.put_bytes(blob_key(entries[-1].sha256), data)
    manifest = Manifest(
        name=name,
        task="text-generation",
        architecture="LlamaForCausalLM",
        context_window=context_window,
        files=tuple(entries),
    )
    await objects.put_bytes(manifest_key(manifest.revision), manifest.encode())
    await objects.put_bytes(pointer_key(name), msgspec.json.encode({"name": name, "revision": manifest.revision}))
    return manifest


async def publish_folder(objects: Objects, name: str, folder: Path, *, context_window: int) -> Manifest:
    """Publish a model whose files are in `folder`."""
    names = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    files = {each: (folder / each).read_bytes() for each in names}
    return await publish(objects, name, files, context_window=context_window)
