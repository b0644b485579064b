"""Conversion of files to Markdown: files in, one row for each file out.

The content of files is parsed in a sandboxed process (`documents.worker`); here it is only bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from documents.converter import Converter
from documents.kinds import KINDS, Kind, find_kind
from documents.options import Options
from gateway.errors import Reason, Refusal
from storage.columns import uuid7

MAX_NAME = 255
MAX_WAITING = 200  # files of all requests in memory
MAX_BODIES = 64  # concurrent requests
_NO_IMAGE_MODEL = "images are not supported: no image description model is published"


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
    """Converts files for all requests of this process."""

    def __init__(self, converter: Converter, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._converter = converter
        self._num_waiting = 0
        self._num_bodies = 0

    @contextlib.contextmanager
    def room(self) -> Iterator[None]:
        """Count one request while the block runs. Raises Refusal if there are too many."""
        if self._num_bodies >= MAX_BODIES:
            raise Refusal(Reason.OUT_OF_CAPACITY)
        self._num_bodies += 1
        try:
            yield
        finally:
            self._num_bodies -= 1

    async def convert(self, conversion: Conversion) -> list[dict[str, Any]]:
        """Return one row for each file, in order, with an error for a file that cannot be read. Raises Refusal if too
        many files are waiting."""
        num_files = len(conversion.documents)
        if self._num_waiting + num_files > MAX_WAITING:
            raise Refusal(Reason.OUT_OF_CAPACITY)
        self._num_waiting += num_files
        try:
            async with asyncio.TaskGroup() as jobs:
                rows = [jobs.create_task(self._row(document, conversion.options)) for document in conversion.documents]
            return [row.result() for row in rows]
        finally:
            self._num_waiting -= num_files

    async def _row(self, document: Document, options: Options) -> dict[str, Any]:
        kind = find_kind(document.name, document.mimeType)
        row = {"id": uuid7(), "name": document.name, "mimeType": _shown_type(document, kind)}
        if kind is None:
            return row | _error("files of this type are not converted: see ai/tomarkdown/supported")
        if kind.reader == "image":
            return row | _error(_NO_IMAGE_MODEL)
        if not document.data:
            return row | _error("the file is empty")
        outcome = await self._converter.convert(document.name, kind, document.data, options)
        if outcome.refusal:
            return row | _error(outcome.refusal)
        return row | {"format": options.output_format, "tokens": outcome.num_tokens, "data": outcome.text}

    async def close(self) -> None:
        await self._converter.close()


def supported_types() -> list[dict[str, str]]:
    """Return the supported file extensions with their media types."""
    return [{"extension": each, "mimeType": kind.media_type} for kind in KINDS for each in kind.extensions]


def _shown_type(document: Document, kind: Kind | None) -> str:
    claimed = document.mimeType.partition(";")[0].strip().lower()
    return kind.media_type if kind is not None else claimed[:MAX_NAME] or "application/octet-stream"


def _error(why: str) -> dict[str, str]:
    return {"format": "error", "error": why}
