"""Forms as they come in: any split of the bytes gives the same parts, and what is no form is refused."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Refusal
from gateway.http.multipart import Form, read_form

BOUNDARY = "x-9y"
CONTENT = b"--x-9\r\n--x-9z\r\n\r\nnearly a boundary\r\n--x-9"


def part(name: str, content: bytes, extra: str = "") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
    return head.encode() + content + b"\r\n"


FORM = part("file", CONTENT, '; filename="a.bin"\r\nContent-Type: application/octet-stream') + part(
    "file_name", "ü.json".encode()
)
END = f"--{BOUNDARY}--\r\n".encode()
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


async def read(body: bytes, folder: Path, sizes: list[int] | None = None, content_type: str = TYPE) -> Form:
    async def chunks() -> AsyncIterator[bytes]:
        rest = body
        for size in sizes or []:
            yield rest[:size]
            rest = rest[size:]
        yield rest

    return await read_form(chunks(), content_type, folder, max_bytes=10_000, stall_timeout_s=1)


@given(st.lists(st.integers(0, 40), max_size=30))
async def test_any_split_gives_the_same_parts(sizes: list[int]):
    with tempfile.TemporaryDirectory() as folder:
        form = await read(b"preamble\r\n" + FORM + END, Path(folder), sizes)
        assert form.texts == {"file_name": "ü.json"}
        assert form.files["file"].read_bytes() == CONTENT


@pytest.mark.parametrize("content_type", ["multipart/form-data", f'Multipart/Form-Data; boundary="{BOUNDARY}"'])
async def test_a_boundary_is_found_where_the_header_has_none(content_type: str, tmp_path: Path):
    form = await read(FORM + END + b"epilogue", tmp_path, [3, 5], content_type)
    assert form.texts["file_name"] == "ü.json"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (FORM + END, "application/json"),
        (FORM, TYPE),
        (b"", TYPE),
        (b"no form at all", "multipart/form-data"),
        (b"x" * 9000, TYPE),
        (f"--{BOUNDARY}garbage\r\n".encode() + END, TYPE),
        (part("a", b"1") + part("a", b"2") + END, TYPE),
        (f"--{BOUNDARY}\r\nContent-Type: x\r\n\r\n1\r\n".encode() + END, TYPE),
        (f"--{BOUNDARY}\r\n".encode() + b"h" * 9000, TYPE),
        (b"".join(part(f"n{number}", b"1") for number in range(17)) + END, TYPE),
        (part("a", b"1" * 20_000) + END, TYPE),
    ],
)
async def test_what_is_no_form_is_refused(body: bytes, content_type: str, tmp_path: Path):
    with pytest.raises(Refusal):
        await read(body, tmp_path, [7], content_type)
