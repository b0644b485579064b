"""A `multipart/form-data` body as it comes in: texts in memory, files on the disk, nothing of either beyond its limit.

A file may come before the text that says what it is. A boundary that the header does not name is the body's first
line. Files of a name that may be repeated stay in memory. Knows no route.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from email.parser import HeaderParser
from email.utils import collapse_rfc2231_value
from pathlib import Path
from typing import BinaryIO

from gateway.errors import ClientLeft, Reason, Refusal

_MAX_PARTS = 16
_MAX_HEADER_BYTES = 8 * 1024
_MAX_TEXT_BYTES = 64 * 1024
_MAX_BOUNDARY = 70
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """A file under a name that may be repeated, as its sender calls it."""

    file_name: str
    media_type: str
    content: io.BytesIO


class Form:
    """What has come: `texts` by name, the `files`, each by its field's name at its place, and, in their order, the
    `parts`: the files of names that may be repeated."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.files: dict[str, Path] = {}
        self.parts: list[Part] = []


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
    """Read a whole body; files go into `folder`, but for those of `repeated` names. Without a folder no other file is
    taken. Raises Refusal, and ClientLeft when the client does."""
    if not content_type.lower().startswith("multipart/form-data"):
        raise Refusal(Reason.BODY_INVALID, "the body must be multipart/form-data")
    parser = _Parser(_boundary_of(content_type), folder, repeated, max_parts)
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
            parser.feed(chunk)
        return parser.finish()
    finally:
        parser.close()


def parse_form(body: bytes, content_type: str, folder: Path) -> Form:
    """The same of a body that is all there. Raises Refusal."""
    parser = _Parser(_boundary_of(content_type), folder, frozenset(), _MAX_PARTS)
    try:
        parser.feed(body)
        return parser.finish()
    finally:
        parser.close()


def _boundary_of(content_type: str) -> bytes | None:
    match = _BOUNDARY.search(content_type)
    return (match[1] or match[2]).encode("ascii", "replace") if match else None


class _Parser:
    """Takes bytes in any pieces. `_step` works on the buffer until it needs more."""

    def __init__(self, boundary: bytes | None, folder: Path | None, repeated: frozenset[str], max_parts: int) -> None:
        self.form = Form()
        self._folder = folder
        self._repeated = repeated
        self._max_parts = max_parts
        self._buffer = bytearray(b"\r\n")  # so that the first delimiter looks like the others
        self._delimiter = None if boundary is None else b"\r\n--" + boundary
        self._step: Callable[[], bool] = self._find_first
        self._name = ""
        self._text = bytearray()
        self._file: BinaryIO | None = None
        self._num_parts = 0
        self._is_over = False

    def feed(self, data: bytes) -> None:
        """Raises Refusal."""
        if not self._is_over:
            self._buffer += data
            while self._step():
                pass

    def finish(self) -> Form:
        """Raises Refusal unless the last delimiter has come."""
        if not self._is_over:
            raise _invalid("the form ends before its last boundary")
        return self.form

    def close(self) -> None:
        if self._file is not None and not isinstance(self._file, io.BytesIO):
            self._file.close()

    def _find_first(self) -> bool:
        """Everything before the first delimiter is nobody's."""
        if self._delimiter is None:
            end = self._buffer.find(b"\r\n", 2)
            if end < 0 and len(self._buffer) <= _MAX_BOUNDARY + 8:
                return False
            line = bytes(self._buffer[2:end])
            if not 0 <= end <= _MAX_BOUNDARY + 4 or not re.fullmatch(rb"--[ -~]+", line):
                raise _invalid("the form has no boundary")
            self._delimiter = b"\r\n" + line
        first = self._buffer.find(self._delimiter)
        if first < 0:
            if len(self._buffer) > _MAX_HEADER_BYTES:
                raise _invalid("the form does not begin with its boundary")
            return False
        del self._buffer[: first + len(self._delimiter)]
        self._step = self._after_delimiter
        return True

    def _after_delimiter(self) -> bool:
        if len(self._buffer) < 2:
            return False
        if self._buffer.startswith(b"--"):
            self._is_over = True
            self._buffer.clear()
            return False
        if not self._buffer.startswith(b"\r\n"):
            raise _invalid("a boundary is not a line of its own")
        self._num_parts += 1
        if self._num_parts > self._max_parts:
            raise _invalid(f"the form has more than {self._max_parts} parts")
        self._step = self._read_headers
        return True

    def _read_headers(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEADER_BYTES:
                raise _invalid("a part's headers are too long")
            return False
        headers = HeaderParser().parsestr(bytes(self._buffer[2:end]).decode("utf-8", "replace"))
        del self._buffer[: end + 4]
        name = headers.get_param("name", header="content-disposition")
        if not isinstance(name, str) or not name or name in self.form.texts or name in self.form.files:
            raise _invalid("a part of the form has no name, or one that came before")
        self._name = name
        file_name = headers.get_param("filename", header="content-disposition")
        if name in self._repeated and file_name is not None:
            self._file = io.BytesIO()
            media_type = headers.get_content_type() if "content-type" in headers else ""
            self.form.parts.append(Part(collapse_rfc2231_value(file_name), media_type, self._file))
        elif file_name is not None:
            if self._folder is None:
                raise _invalid("the form has a file under a name that none is taken by")
            path = self._folder / f"part-{self._num_parts}"
            self._file = path.open("xb")
            self.form.files[name] = path
        self._step = self._read_content
        return True

    def _read_content(self) -> bool:
        assert self._delimiter is not None
        end = self._buffer.find(self._delimiter)
        keep = len(self._delimiter) - 1  # may be the beginning of a delimiter
        size = end if end >= 0 else max(0, len(self._buffer) - keep)
        self._take(memoryview(self._buffer)[:size])
        if end < 0:
            del self._buffer[:size]
            return False
        del self._buffer[: end + len(self._delimiter)]
        self._end_part()
        return True

    def _take(self, data: memoryview) -> None:
        with data:
            if self._file is not None:
                self._file.write(data)
                return
            self._text += data
        if len(self._text) > _MAX_TEXT_BYTES:
            raise _invalid(f"a text of the form has more than {_MAX_TEXT_BYTES} bytes")

    def _end_part(self) -> None:
        if self._file is not None:
            self.close()
            self._file = None
        else:
            self.form.texts[self._name] = self._text.decode("utf-8", "replace")
            self._text.clear()
        self._step = self._after_delimiter


async def chunks_of(receive: Callable[[], object]) -> AsyncIterator[bytes]:
    """A request's body as it comes. Raises ClientLeft."""
    while True:
        message = await receive()  # type: ignore[misc]
        if message["type"] == "http.disconnect":
            raise ClientLeft
        yield message.get("body", b"")
        if not message.get("more_body"):
            return


def _invalid(what: str) -> Refusal:
    return Refusal(Reason.BODY_INVALID, what)
