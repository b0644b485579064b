"""Multipart forms: every split of the body parses to the same form, and invalid forms are rejected."""

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


async def read(body: bytes, folder: Path | None, sizes: list[int] | None = None, content_type: str = TYPE) -> Form:
    """Parse a body that arrives in chunks of the given sizes."""

    async def chunks() -> AsyncIterator[bytes]:
        rest = body
        for size in sizes or []:
            yield rest[:size]
            rest = rest[size:]
        yield rest

    return await read_form(
        chunks(), content_type, folder, max_bytes=100_000, stall_timeout_s=1, repeated=frozenset({"many"})
    )


@given(st.lists(st.integers(0, 40), max_size=30), st.sampled_from([TYPE, "multipart/form-data"]))
async def test_every_split_of_the_body_gives_the_same_form(sizes: list[int], content_type: str):
    with tempfile.TemporaryDirectory() as folder:
        form = await read(FORM + END, Path(folder), sizes, content_type)
        assert form.texts == {"file_name": "ü.json"}
        assert form.files["file"].read_bytes() == CONTENT


@pytest.mark.parametrize("content_type", ["multipart/form-data", f'Multipart/Form-Data; boundary="{BOUNDARY}"'])
async def test_missing_boundary_is_taken_from_the_first_line(content_type: str, tmp_path: Path):
    form = await read(FORM + END + b"epilogue", tmp_path, [3, 5], content_type)
    assert form.texts["file_name"] == "ü.json"


async def test_files_of_repeatable_fields_stay_in_memory_in_order():
    files = [part("many", content, f'; filename="{content.decode()}"') for content in (b"1", b"2")]
    encoded = part("many", b"3", "; filename*=utf-8''%C3%BC")
    form = await read(b"".join(files) + encoded + END, None)
    assert [(each.file_name, each.content.getvalue()) for each in form.parts] == [("1", b"1"), ("2", b"2"), ("ü", b"3")]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (FORM + END, "application/json"),
        (FORM, TYPE),
        (b"", TYPE),
        (b"no form at all", "multipart/form-data"),
        (b"x" * 9000, TYPE),
        (b"x" * 9000, "multipart/form-data"),
        (b"preamble\r\n" + FORM + END, TYPE),
        (f"--{BOUNDARY}garbage\r\n".encode() + END, TYPE),
        (part("a", b"1") + part("a", b"2") + END, TYPE),
        (f"--{BOUNDARY}\r\nContent-Type: x\r\n\r\n1\r\n".encode() + END, TYPE),
        (f"--{BOUNDARY}\r\n".encode() + b"h" * 9000, TYPE),
        (f"--{BOUNDARY}\r\nh: ".encode() + b"h" * 9000, TYPE),
        (part("a", b"1", "\r\nh: x" * 20) + END, TYPE),
        (f"--{BOUNDARY}\r\nContent-Disposition\x00: form-data; name=a\r\n\r\n1\r\n".encode() + END, TYPE),
        (b"".join(part(f"n{number}", b"1") for number in range(17)) + END, TYPE),
        (part("a", b"1" * 70_000) + END, TYPE),
        (part("file", b"1" * 110_000, '; filename="x"') + END, TYPE),
    ],
)
async def test_invalid_form_is_rejected(body: bytes, content_type: str, tmp_path: Path):
    with pytest.raises(Refusal):
        await read(body, tmp_path, [7], content_type)


async def test_file_in_a_field_that_takes_no_file_is_rejected():
    with pytest.raises(Refusal):
        await read(FORM + END, None)
