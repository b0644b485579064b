"""Multipart forms: every split of the body parses to the same form, and invalid forms are rejected."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Refusal
from gateway.http.multipart import read_form

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


async def read(
    body: bytes, sizes: list[int] | None = None, content_type: str = TYPE, repeatable: frozenset[str] = frozenset()
) -> list[tuple[str, str | None, bytes | str]]:
    """Parse a body that arrives in chunks of the given sizes; return field, file name and content of each part."""

    async def chunks() -> AsyncIterator[bytes]:
        unsent = body
        for size in sizes or []:
            yield unsent[:size]
            unsent = unsent[size:]
        yield unsent

    async with read_form(chunks(), content_type, max_bytes=100_000, timeout_s=1, repeatable=repeatable) as form:
        return [
            (field, None, value) if isinstance(value, str) else (field, value.filename, await value.read())
            for field, value in form.multi_items()
        ]


@given(st.lists(st.integers(0, 40), max_size=30), st.sampled_from([TYPE, "multipart/form-data"]))
async def test_every_split_of_the_body_gives_the_same_form(sizes: list[int], content_type: str):
    parts = await read(FORM + END, sizes, content_type)
    assert parts == [("file", "a.bin", CONTENT), ("file_name", None, "ü.json")]


@pytest.mark.parametrize("content_type", ["multipart/form-data", f'Multipart/Form-Data; boundary="{BOUNDARY}"'])
async def test_missing_boundary_is_taken_from_the_first_line(content_type: str):
    assert len(await read(FORM + END + b"epilogue", [3, 5], content_type)) == 2


async def test_files_of_repeatable_fields_are_returned_in_order():
    files = [part("many", content, f'; filename="{content.decode()}"') for content in (b"1", "ü".encode())]
    parts = await read(b"".join(files) + END, repeatable=frozenset({"many"}))
    assert parts == [("many", "1", b"1"), ("many", "ü", "ü".encode())]


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
async def test_invalid_form_is_rejected(body: bytes, content_type: str):
    with pytest.raises(Refusal):
        await read(body, [7], content_type)


async def test_file_in_a_field_that_takes_no_file_is_rejected():
    with pytest.raises(Refusal):
        await read(FORM + END, repeatable=frozenset({"many"}))
