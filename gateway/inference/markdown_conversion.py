"""Conversion of files to Markdown: files from a form or from JSON in, one row for each file out.

The content of files is parsed in a sandboxed process (`documents.worker`); here it is only bytes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from documents.converter import Converter
from documents.kinds import KINDS, Kind, find_kind
from documents.options import Options, parse_options
from gateway.errors import Reason, Refusal
from gateway.http import json_body, multipart
from storage.columns import uuid7

FIELDS = frozenset({"files", "files[]"})
MAX_FILES = 50
MAX_NAME = 255
MAX_WAITING = 200  # files of all requests in memory
MAX_BODIES = 64  # concurrent requests
_NO_IMAGE_MODEL = "images are not supported: no image description model is published"


@dataclass(frozen=True)
class Document:
    """One file, with the name and media type that the client claims."""

    name: str
    media_type: str
    data: bytes


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
        kind = find_kind(document.name, document.media_type)
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


def read_form(form: multipart.Form) -> Conversion:
    """Read a form with `files` or `files[]`, and `conversionOptions`. Raises Refusal."""
    text = form.texts.get("conversionOptions", "")
    given = json_body.parse(text.encode()) if text.strip() else None
    documents = tuple(
        Document(part.file_name, part.media_type, part.content.getvalue()) for part in form.parts
    )  # fmt: skip
    return _conversion(documents, given, "files")


def read_json(body: dict[str, Any]) -> Conversion:
    """Read `{"files": [{"name", "mimeType", "data": base64}], "options"}`, as a Worker's binding sends it. Raises
    Refusal."""
    files = body.get("files")
    if isinstance(files, dict):
        files = [files]
    if not isinstance(files, list):
        raise Refusal(Reason.INPUT_INVALID, "required properties at '/' are 'files'")
    if len(files) > MAX_FILES:
        raise Refusal(Reason.INPUT_INVALID, f"'/files' must have <= {MAX_FILES} items")
    documents = tuple(_document(each, f"/files/{i}") for i, each in enumerate(files))
    return _conversion(documents, body.get("options"), "files")


def _conversion(documents: Sequence[Document], given: Any, field: str) -> Conversion:
    if not documents:
        raise Refusal(Reason.INPUT_INVALID, f"'/{field}' must have >= 1 items")
    if len(documents) > MAX_FILES:
        raise Refusal(Reason.INPUT_INVALID, f"'/{field}' must have <= {MAX_FILES} items")
    for document in documents:
        if not document.name or len(document.name) > MAX_NAME or not document.name.isprintable():
            raise Refusal(Reason.INPUT_INVALID, f"a file's name must be 1 to {MAX_NAME} printable characters")
    try:
        return Conversion(tuple(documents), parse_options(given))
    except ValueError as error:
        raise Refusal(Reason.INPUT_INVALID, str(error)) from None


def _document(given: Any, path: str) -> Document:
    if not isinstance(given, dict):
        raise Refusal(Reason.INPUT_INVALID, f"Type mismatch of '{path}', expected 'object'")
    name, media_type, data = given.get("name"), given.get("mimeType", ""), given.get("data")
    for field, value in (("name", name), ("mimeType", media_type), ("data", data)):
        if not isinstance(value, str):
            raise Refusal(Reason.INPUT_INVALID, f"Type mismatch of '{path}/{field}', expected 'string'")
    try:
        return Document(str(name), str(media_type), base64.b64decode(str(data), validate=True))
    except (binascii.Error, ValueError):
        raise Refusal(Reason.BODY_INVALID, f"'{path}/data' is not base64") from None


def _shown_type(document: Document, kind: Kind | None) -> str:
    claimed = document.media_type.partition(";")[0].strip().lower()
    return kind.media_type if kind is not None else claimed[:MAX_NAME] or "application/octet-stream"


def _error(why: str) -> dict[str, str]:
    return {"format": "error", "error": why}
