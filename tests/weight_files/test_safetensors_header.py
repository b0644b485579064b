"""The header check against headers that anyone could write: what passes describes exactly the bytes that are there."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def check_laws(path: Path) -> None:
    """Refused by name of the file, or true of every byte of it."""
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
def test_no_header_of_any_shape_does_more_than_raise(header: Any, num_bytes: int, folder: Path) -> None:
    check_laws(written(folder, json.dumps(header).encode(), bytes(num_bytes)))


@given(sizes=st.lists(st.integers(0, 5), max_size=5), cut=st.integers(0, 40), moved=st.integers(-3, 3), data=st.data())
def test_sound_headers_pass_and_moved_or_cut_ones_do_not(
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
    check_laws(path)
    chosen = data.draw(st.sampled_from(sorted(header))) if header else None
    if chosen and moved and header[chosen]["shape"] != [0]:
        header[chosen]["data_offsets"] = [place + moved for place in header[chosen]["data_offsets"]]
        with pytest.raises(HeaderError):
            read_header(written(folder, json.dumps(header).encode(), bytes(end)))
    elif 0 < cut <= end:
        with pytest.raises(HeaderError):
            read_header(written(folder, json.dumps(header).encode(), bytes(end - cut)))


@given(content=st.binary(max_size=200))
def test_any_bytes_at_all_do_no_more_than_raise(content: bytes, folder: Path) -> None:
    path = folder / "x.safetensors"
    path.write_bytes(content)
    check_laws(path)


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
def test_a_header_made_to_be_expensive_is_refused_shortly_and_in_few_words(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, BOMBS[name], bytes(4))
    started = time.process_time()
    with pytest.raises(HeaderError) as refusal:
        read_header(path)
    assert time.process_time() - started < 5
    assert len(str(refusal.value)) < 1000


def test_a_header_of_a_hundred_megabytes_is_refused_unread(tmp_path: Path) -> None:
    path = written(tmp_path, b"{}", b"", header_bytes=100_000_000)
    with path.open("r+b") as file:
        file.truncate(200_000_000)  # sparse: the bytes are there, and nobody reads them
    with pytest.raises(HeaderError, match=f"header of 100000000 bytes; at most {MAX_HEADER_BYTES} are read"):
        read_header(path)


def test_types_of_less_than_a_byte_must_fill_bytes(tmp_path: Path) -> None:
    entry = {"dtype": "F4", "shape": [3]}
    for size in (1, 2):
        header = json.dumps({"a": entry | {"data_offsets": [0, size]}}).encode()
        with pytest.raises(HeaderError, match=f"{size} bytes for a F4"):
            read_header(written(tmp_path, header, bytes(size)))
    header = json.dumps({"a": entry | {"shape": [4], "data_offsets": [0, 2]}}).encode()
    extent = read_header(written(tmp_path, header, bytes(2)))["a"]
    assert (extent.shape, extent.size_bytes) == ((4,), 2)
