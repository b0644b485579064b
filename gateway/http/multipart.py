"""Read `multipart/form-data` bodies with limits: text fields in memory, files in memory or on disk.

`python-multipart` splits the body. This module enforces the limits on sizes, counts and time, and rejects repeated
field names. Workers send forms without a boundary in the Content-Type header, so a missing boundary is taken from the
first line of the body.
"""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from email.message import Message
from email.utils import collapse_rfc2231_value
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser

from gateway.errors import ClientLeft, Reason, Refusal

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_MAX_PARTS = 16
_MAX_HEADERS = 8  # per part
_MAX_HEADER_BYTES = 8 * 1024  # per header
_MAX_TEXT_BYTES = 64 * 1024  # per text field
_MAX_BOUNDARY = 70  # RFC 2046
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_FIRST_LINE = re.compile(rb"\r?\n?--([ -~]{1,70})\r\n")

# The library warns about every malformed body; the client gets an error response instead.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Part:
    """A file in memory, from a field that may be repeated. Name and media type are as the client sent them."""

    file_name: str
    media_type: str
    content: io.BytesIO


@dataclass
class Form:
    """A parsed form.

    `texts` and `files` are keyed by field name; `files` holds paths on disk. `parts` holds the files of repeatable
    fields, in the order of the body.
    """

    texts: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)


async def read_form(
    chunks: AsyncIterator[bytes],
    content_type: str,
    folder: Path | None,
    *,
    max_bytes: int,
    stall_timeout_s: float,
    repeated: frozenset[str] = frozenset(),
    max_parts: int = _MAX_PARTS,
) -> Form:
    """Read a form from the request body.

    Files of `repeated` fields stay in memory; all other files are written to `folder`, or rejected if `folder` is
    None. Raises Refusal if the form is invalid, larger than `max_bytes`, or if no data arrives for `stall_timeout_s`
    seconds. Raises ClientLeft if the client disconnects.
    """
    if not content_type.lower().startswith("multipart/form-data"):
        raise Refusal(Reason.BODY_INVALID, "the body must be multipart/form-data")
    reader = _FormReader(content_type, folder, repeated, max_parts)
    num_bytes = 0
    try:
        while True:
            try:
                async with asyncio.timeout(stall_timeout_s):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                break
            except TimeoutError:
                raise Refusal(Reason.BODY_SLOW) from None
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                raise Refusal(Reason.BODY_TOO_LARGE, str(max_bytes))
            reader.feed(chunk)
        return reader.finish()
    finally:
        reader.close()


def parse_form(body: bytes, content_type: str, folder: Path) -> Form:
    """Parse a form that has been received completely. Raises Refusal if it is invalid."""
    reader = _FormReader(content_type, folder, frozenset(), _MAX_PARTS)
    try:
        reader.feed(body)
        return reader.finish()
    finally:
        reader.close()


async def body_chunks(receive: Callable[[], object]) -> AsyncIterator[bytes]:
    """Yield a request's body as it arrives. Raises ClientLeft if the client disconnects."""
    while True:
        message = await receive()  # type: ignore[misc]
        if message["type"] == "http.disconnect":
            raise ClientLeft
        yield message.get("body", b"")
        if not message.get("more_body"):
            return


class _FormReader:
    """Collects the callbacks of `MultipartParser` into a Form."""

    def __init__(self, content_type: str, folder: Path | None, repeated: frozenset[str], max_parts: int) -> None:
        self._form = Form()
        self._folder = folder
        self._repeated = repeated
        self._max_parts = max_parts
        self._num_parts = 0
        self._is_complete = False
        self._headers = Message()
        self._header_name = b""
        self._header_value = b""
        self._name = ""
        self._text = bytearray()
        self._file: BinaryIO | None = None
        self._first_line = b""  # buffered until the boundary is known
        match = _BOUNDARY.search(content_type)
        self._parser = self._make_parser((match[1] or match[2]).encode("ascii", "replace")) if match else None

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the body. Raises Refusal."""
        if self._parser is None:
            data = self._first_line = self._first_line + data
            match = _FIRST_LINE.match(data)
            if match is None:
                if len(data) > _MAX_BOUNDARY + 6:
                    raise _invalid("the form has no boundary")
                return
            self._parser = self._make_parser(match[1])
        try:
            self._parser.write(data)
        except MultipartParseError:
            raise _invalid("the form is not valid multipart/form-data") from None

    def finish(self) -> Form:
        """Return the form. Raises Refusal if the closing boundary has not arrived."""
        if not self._is_complete:
            raise _invalid("the form ends before its last boundary")
        return self._form

    def close(self) -> None:
        """Close the file on disk that is being written, if any."""
        if self._file is not None and not isinstance(self._file, io.BytesIO):
            self._file.close()

    def _make_parser(self, boundary: bytes) -> MultipartParser:
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._on_part_begin,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }
        return MultipartParser(
            boundary, callbacks, max_header_count=_MAX_HEADERS, max_header_size=_MAX_HEADER_BYTES
        )  # fmt: skip

    def _on_part_begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > self._max_parts:
            raise _invalid(f"the form has more than {self._max_parts} parts")
        self._headers = Message()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._header_name.decode("ascii")] = self._header_value.decode("utf-8", "replace")
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        name = self._headers.get_param("name", header="content-disposition")
        if not isinstance(name, str) or not name or name in self._form.texts or name in self._form.files:
            raise _invalid("a part of the form has no name, or a name that is already used")
        self._name = name
        file_name = self._headers.get_param("filename", header="content-disposition")
        if file_name is None:
            return
        if name in self._repeated:
            self._file = io.BytesIO()
            media_type = self._headers.get_content_type() if "content-type" in self._headers else ""
            self._form.parts.append(Part(collapse_rfc2231_value(file_name), media_type, self._file))
        elif self._folder is None:
            raise _invalid("the form has a file in a field that takes no file")
        else:
            path = self._folder / f"part-{self._num_parts}"
            self._file = path.open("xb")
            self._form.files[name] = path

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            with memoryview(data) as view:
                self._file.write(view[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > _MAX_TEXT_BYTES:
            raise _invalid(f"a text field of the form is larger than {_MAX_TEXT_BYTES} bytes")

    def _on_part_end(self) -> None:
        if self._file is not None:
            self.close()
            self._file = None
        else:
            self._form.texts[self._name] = self._text.decode("utf-8", "replace")
            self._text.clear()

    def _on_end(self) -> None:
        self._is_complete = True


def _invalid(detail: str) -> Refusal:
    return Refusal(Reason.BODY_INVALID, detail)
