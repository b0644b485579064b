"""Conversion of files to Markdown: files in, one row for each file out.

The content of files is parsed in a sandboxed process (`documents.worker`); here it is only bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from msgspec import Meta, Struct

from documents.converter import Converter
from documents.kinds import AUDIO, IMAGE, KINDS, PDF_SCANS, Kind, find_kind
from documents.messages import NO_TEXT, Outcome
from documents.options import Options
from documents.tokens import count
from engine.protocol.images import Image, MediaFile
from gateway.admission import hold_share
from gateway.errors import Reason, Refusal
from storage.columns import uuid7
from telemetry.fair_share import AccountShares, FairQueue

MAX_NAME = 255
MAX_TEXT_BYTES = 32 << 20  # all files of a request: encoding a larger response would delay others
MAX_BODIES = 64  # concurrent requests
_NO_IMAGE_MODEL = "images are not supported: no image description model is published"


class ReadImage(Protocol):
    """Returns the text of an image, which may be a scanned page. Raises Refusal."""

    def __call__(self, file: bytes, *, is_page: bool) -> Awaitable[str]: ...


class Document(Struct, frozen=True):
    """One file, with the name and media type that the client claims. In JSON, the data is base64."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    data: bytes
    mimeType: str = ""  # noqa: N815 - the name in the API


@dataclass(frozen=True)
class Conversion:
    """A request to convert files."""

    documents: tuple[Document, ...]
    options: Options


class Documents:
    """Converts files for all requests of this process, `num_processes` at the same time. Accounts take turns."""

    def __init__(self, converter: Converter, max_bytes: int, num_processes: int = 2) -> None:
        self.max_bytes = max_bytes
        self._converter = converter
        self._bodies = AccountShares(MAX_BODIES)
        self._processes = FairQueue(num_processes)

    def room(self, account_id: str) -> AbstractContextManager[None]:
        """Count one request of the account while the block runs. Raises Refusal if there are too many."""
        return hold_share(self._bodies, account_id)

    async def convert(
        self, account_id: str, conversion: Conversion, read_image: ReadImage | None = None
    ) -> list[dict[str, Any]]:
        """Return one row for each file, in order, with an error for a file that cannot be read. `read_image` returns
        the text of an image file; without it, images and scans are such files."""
        async with asyncio.TaskGroup() as jobs:
            rows = [
                jobs.create_task(self._row(account_id, document, conversion.options, read_image))
                for document in conversion.documents
            ]
        return _with_bounded_text([row.result() for row in rows])

    async def decode(self, account_id: str, file: MediaFile) -> bytes | Image:
        """Return the samples or the image of a task's file. Raises Refusal, which names the field."""
        if file.kind == "audio":
            return await self.decode_audio(account_id, file.data, file.field)
        return await self.decode_image(
            account_id, file.data, file.field, max_pixels=file.max_pixels, is_mask=file.kind == "mask"
        )

    async def decode_audio(self, account_id: str, data: bytes, field: str) -> bytes:
        """Return a recording's samples, as `documents/audio.py` defines them. Raises Refusal, which names the field."""
        return (await self._decode(account_id, data, field, AUDIO, Options())).samples

    async def decode_image(
        self, account_id: str, data: bytes, field: str, *, max_pixels: int, is_mask: bool = False
    ) -> Image:
        """Return an image of at most `max_pixels`, as `documents/images.py` defines it. Raises Refusal, which names the
        field."""
        options = Options(max_pixels=max_pixels, is_mask=is_mask)
        found = (await self._decode(account_id, data, field, IMAGE, options)).image
        assert found is not None, "an outcome without a refusal has an image"
        return Image(found.width, found.height, found.pixels, found.source_width, found.source_height)

    async def _decode(self, account_id: str, data: bytes, field: str, kind: Kind, options: Options) -> Outcome:
        async with self._processes.slot(account_id):
            outcome = await self._converter.convert(field, kind, data, options)
        if outcome.refusal:
            raise Refusal(Reason.INPUT_INVALID, f"'/{field}': {outcome.refusal}")
        return outcome

    async def _row(
        self, account_id: str, document: Document, options: Options, read_image: ReadImage | None
    ) -> dict[str, Any]:
        kind = find_kind(document.name, document.mimeType)
        row = {"id": uuid7(), "name": document.name, "mimeType": _shown_type(document, kind)}
        if kind is None:
            return row | _error("files of this type are not converted: see ai/tomarkdown/supported")
        if kind.reader == "image" and read_image is None:
            return row | _error(_NO_IMAGE_MODEL)
        if not document.data:
            return row | _error("the file is empty")
        if kind.reader == "image" and read_image is not None:
            return row | await _read_images([document.data], read_image, options, is_page=False)
        async with self._processes.slot(account_id):
            outcome = await self._converter.convert(document.name, kind, document.data, options)
        if outcome.refusal == NO_TEXT and read_image is not None:
            async with self._processes.slot(account_id):
                outcome = await self._converter.convert(document.name, PDF_SCANS, document.data, options)
            if outcome.pages:
                return row | await _read_images(outcome.pages, read_image, options, is_page=True)
        if outcome.refusal:
            return row | _error(outcome.refusal)
        return row | {"format": options.output_format, "tokens": outcome.num_tokens, "data": outcome.text}

    async def close(self) -> None:
        await self._converter.close()


async def _read_images(
    files: Sequence[bytes], read_image: ReadImage, options: Options, *, is_page: bool
) -> dict[str, Any]:
    """Return the fields of a row for the text of images, one after the other."""
    try:
        texts = [await read_image(file, is_page=is_page) for file in files]
    except Refusal as refusal:
        return _error(refusal.message)
    if len(texts) > 1 and options.output_format == "markdown":
        texts = [f"### Page {number}\n\n{text}".strip() for number, text in enumerate(texts, 1)]
    text = "\n\n".join(filter(None, texts))
    return {"format": options.output_format, "tokens": count(text), "data": text}


def _with_bounded_text(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace the text of files after the first MAX_TEXT_BYTES characters by an error."""
    num_characters = 0
    for row in rows:
        num_characters += len(row.get("data", ""))
        if num_characters > MAX_TEXT_BYTES and "data" in row:
            del row["data"], row["tokens"]
            row |= _error(f"the files of one request have more than {MAX_TEXT_BYTES} characters of text")
    return rows


def supported_types() -> list[dict[str, str]]:
    """Return the supported file extensions with their media types."""
    return [{"extension": each, "mimeType": kind.media_type} for kind in KINDS for each in kind.extensions]


def _shown_type(document: Document, kind: Kind | None) -> str:
    claimed = document.mimeType.partition(";")[0].strip().lower()
    return kind.media_type if kind is not None else claimed[:MAX_NAME] or "application/octet-stream"


def _error(why: str) -> dict[str, str]:
    return {"format": "error", "error": why}
