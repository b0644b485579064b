"""Read `multipart/form-data` bodies with starlette's parser, limited in size, number of parts and time.

Workers send forms without a boundary in the Content-Type header; a missing boundary is taken from the first line of the
body.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection

from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from gateway.errors import ClientLeft, Reason, Refusal
from gateway.http.exchange import Receive

MAX_PARTS = 16
_MAX_TEXT_BYTES = 64 * 1024  # per text field
_BOUNDARY = re.compile(r'boundary=(?:"[^"]{1,70}"|[^\s;"]{1,70})', re.IGNORECASE)
_FIRST_LINE = re.compile(rb"\r?\n?--([ !#-\[\]-~]{1,70})\r\n")

# The library warns about every malformed body; the client gets an error response instead.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


class _Parser(MultiPartParser):
    """Starlette's parser, which also notes whether the form was complete."""

    is_complete = False

    def on_end(self) -> None:
        self.is_complete = True


@contextlib.asynccontextmanager
async def read_form(
    chunks: AsyncIterator[bytes],
    content_type: str,
    *,
    max_bytes: int,
    timeout_s: float | None = None,
    min_bytes_per_s: int = 1 << 16,
    repeatable: Collection[str] = (),
    max_parts: int = MAX_PARTS,
) -> AsyncIterator[FormData]:
    """Read a form from the chunks of a body, for `async with`, which closes its files at the end.

    `repeatable` are the file fields that may occur more than once; if there are any, no other field may have a file.
    The whole form must arrive within `timeout_s` seconds, plus one second for each `min_bytes_per_s` that have arrived.
    Raises Refusal if the form is invalid, larger than `max_bytes`, or too slow. Raises what `chunks` raises.
    """
    if not content_type.lower().startswith("multipart/form-data"):
        raise _invalid("the body must be multipart/form-data")
    stream = _limited(chunks, max_bytes, timeout_s, min_bytes_per_s)
    found = _BOUNDARY.search(content_type)
    boundary, start = (found[0], b"") if found else await _boundary_in_body(stream)
    headers = Headers({"content-type": f"multipart/form-data; {boundary}"})
    parser = _Parser(
        headers, _joined(start, stream), max_files=max_parts, max_fields=max_parts, max_part_size=_MAX_TEXT_BYTES
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise _invalid(f"the form is malformed: {error.message}") from None
    try:
        if not parser.is_complete:
            raise _invalid("the form is incomplete")
        _check_fields(form, repeatable)
        yield form
    finally:
        await form.close()


def _check_fields(form: FormData, repeatable: Collection[str]) -> None:
    names: set[str] = set()
    for name, value in form.multi_items():
        if isinstance(value, UploadFile) and repeatable:
            if name not in repeatable:
                raise _invalid("the form has a file in a field that takes no file")
        elif name in names and not name.endswith("[]"):  # the name of a list's items
            raise _invalid("two parts of the form have the same name")
        names.add(name)


async def body_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """Yield a request's body as it arrives. Raises ClientLeft if the client disconnects."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        yield message.get("body", b"")
        if not message.get("more_body"):
            return


async def _limited(
    chunks: AsyncIterator[bytes], max_bytes: int, timeout_s: float | None, min_bytes_per_s: int
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks, in time and together not larger than `max_bytes`. Raises Refusal."""
    num_bytes = 0
    latest_s = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            async with asyncio.timeout_at(None if latest_s is None else latest_s + num_bytes / min_bytes_per_s):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise Refusal(Reason.BODY_SLOW) from None
        if chunk is None:
            return
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise Refusal(Reason.BODY_TOO_LARGE, str(max_bytes))
        yield chunk


async def _boundary_in_body(stream: AsyncIterator[bytes]) -> tuple[str, bytes]:
    """Return the boundary in the first line as a parameter, and the part of the body that was read to find it."""
    start = b""
    async for chunk in stream:
        start += chunk
        found = _FIRST_LINE.match(start)
        if found:
            return f'boundary="{found[1].decode("ascii")}"', start
        if len(start) > 80:
            break
    raise _invalid("the form has no boundary")


async def _joined(start: bytes, stream: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    if start:
        yield start
    async for chunk in stream:
        yield chunk


def _invalid(detail: str) -> Refusal:
    return Refusal(Reason.BODY_INVALID, detail)


async def form_fields(raw: bytes, content_type: str) -> dict[str, str]:
    """Return the texts of a form that is a whole body, and its files in base64. Raises Refusal."""

    async def chunks() -> AsyncIterator[bytes]:
        yield raw

    async with read_form(chunks(), content_type, max_bytes=len(raw)) as form:
        return {
            name: value if isinstance(value, str) else base64.b64encode(await value.read()).decode("ascii")
            for name, value in form.items()
        }
