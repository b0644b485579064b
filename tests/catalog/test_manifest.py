"""catalog/manifest.py: revisions, digests and paths of model files."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from catalog.card import manifest_of
from catalog.errors import CardError
from catalog.manifest import FileEntry, Manifest, decode_manifest, entry_of, is_intact, pointer_key
from tests.catalog.cards import chat_facts

FILES = tuple(FileEntry(path, 1, digit * 64) for path, digit in (("a.json", "a"), ("b/c.json", "b"), ("w", "c")))


def manifest(files: tuple[FileEntry, ...] = FILES) -> Manifest:
    return manifest_of(chat_facts(), "LlamaForCausalLM", files)


def test_revision_does_not_depend_on_the_order_of_files() -> None:
    assert len({manifest(order).revision for order in itertools.permutations(FILES)}) == 1


def test_changed_file_changes_the_revision() -> None:
    others = [
        (FileEntry("a.json", 2, "a" * 64), *FILES[1:]),
        (FileEntry("a.json", 1, "d" * 64), *FILES[1:]),
        (FileEntry("z.json", 1, "a" * 64), *FILES[1:]),
        FILES[1:],
    ]
    assert len({manifest().revision, *(manifest(files).revision for files in others)}) == 5


def test_manifest_is_rejected_under_another_revision() -> None:
    data = manifest().encode()
    assert decode_manifest(data, manifest().revision).encode() == data
    with pytest.raises(CardError):
        decode_manifest(data + b" ", manifest().revision)
    with pytest.raises(CardError):
        decode_manifest(data, "0" * 64)


@pytest.mark.parametrize(
    "path", ["../x", "a/../b", "/etc/passwd", "a//b", "", ".hidden", "a/.b", "a\\b", "a\nb", "a/b/c/d/e", "x" * 200]
)
def test_path_outside_the_folder_is_rejected(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        FileEntry(path, 1, "a" * 64)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"path": path, "size_bytes": 1, "sha256": "a" * 64}, FileEntry)


def test_duplicate_file_is_rejected() -> None:
    with pytest.raises(ValueError, match="twice"):
        manifest((FILES[0], FILES[0]))


def test_changed_bit_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "data"
    data = bytes(range(256)) * 16
    file.write_bytes(data)
    entry = entry_of(tmp_path, "data")
    assert is_intact(file, entry)
    for position in range(0, len(data), 97):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        file.write_bytes(damaged)
        assert not is_intact(file, entry)
    file.write_bytes(data[:-1])
    assert not is_intact(file, entry)
    file.unlink()
    assert not is_intact(file, entry)


def test_object_store_key_never_contains_a_name() -> None:
    assert pointer_key("@cf/acme/chat").removeprefix("models/").removesuffix(".json").isalnum()


def test_optional_fields_without_a_value_are_not_encoded() -> None:
    assert b"tool_parser" not in manifest().encode()
    facts = chat_facts(capabilities=["function_calling"], tool_parser="hermes")
    named = manifest_of(facts, "LlamaForCausalLM", FILES)
    assert named.revision != manifest().revision
    assert decode_manifest(named.encode(), named.revision).tool_parser == "hermes"
