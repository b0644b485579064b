"""`A/ai/tomarkdown`: convert files to Markdown, and list the supported types of files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from documents.options import parse_options
from gateway import envelope, quotas
from gateway.errors import ClientLeft, Reason, Refusal
from gateway.http import json_body, multipart, struct_fields
from gateway.inference.image_reader import ImageReader
from gateway.inference.markdown_conversion import MAX_NAME, Conversion, Document, supported_types
from gateway.management.endpoint import ManagementRequest, invalid_ai_input, waits_itself
from gateway.openapi.operation import describe
from gateway.services import Services
from tenants.credentials.principal import Principal
from tenants.usage.usage_entries import UsageEntry

TASK = "to-markdown"  # the name in limits and usage, also in place of a model
MAX_FILES = 50
_FILE_FIELDS = frozenset({"files", "files[]"})
_FORM_OVERHEAD_BYTES = 256 * 1024


class ConvertForm(Struct, frozen=True):
    """The form of files to convert."""

    files: list[Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})]]
    conversionOptions: Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/json"})] = ""  # noqa: N815 - the name in the API


@waits_itself
@describe(body=ConvertForm, body_media_type="multipart/form-data")
async def convert(services: Services, request: ManagementRequest) -> Response:
    """Convert files to Markdown or plain text. The form has `files` and optionally `conversionOptions`; the response
    has a row for each file, with an error for a file that cannot be read."""

    async def read() -> Conversion:
        limit = services.documents.max_bytes
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > limit + _FORM_OVERHEAD_BYTES:
            raise Refusal(Reason.BODY_TOO_LARGE, str(limit))
        async with multipart.read_form(
            multipart.body_chunks(request.receive),
            request.headers.get("content-type", ""),
            max_bytes=limit + _FORM_OVERHEAD_BYTES,
            timeout_s=services.settings.body_timeout_s,
            min_bytes_per_s=services.settings.body_min_bytes_per_s,
            repeatable=_FILE_FIELDS,
            max_parts=MAX_FILES + 2,
        ) as form:
            return await _read_form(form)

    return await _convert(services, request, read)


class TransformBody(Struct, frozen=True):
    """Files with name, media type and base64 content, and conversion options."""

    files: list[Document]
    options: dict[str, Any] | None = None


@waits_itself
@describe(body=TransformBody)
async def transform(services: Services, request: ManagementRequest) -> Response:
    """Convert files in JSON, as a Worker's binding sends them: `files` with name, media type and base64 content, and
    optionally `options`."""
    exchange = request.exchange

    async def read() -> Conversion:
        max_bytes = services.documents.max_bytes * 4 // 3 + _FORM_OVERHEAD_BYTES
        exchange.check_content_length(max_bytes)
        body = await exchange.read_body(max_bytes, services.settings.body_timeout_s)
        return await services.parsing_turns.parse(request.principal.party, lambda: read_json(json_body.parse(body)))

    return await _convert(services, request, read)


async def _read_form(form: FormData) -> Conversion:
    """Read a form with `files` or `files[]`, and `conversionOptions`. Raises Refusal."""
    text = form.get("conversionOptions", "")
    options = json_body.parse(text.encode()) if isinstance(text, str) and text.strip() else None
    files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
    documents = [Document(file.filename or "", await file.read(), file.content_type or "") for file in files]
    return _conversion(documents, options)


def read_json(body: dict[str, Any]) -> Conversion:
    """Read a TransformBody, as a Worker's binding sends it; `files` can be a single file. Raises Refusal."""
    if isinstance(body.get("files"), dict):
        body = body | {"files": [body["files"]]}
    try:
        converted = struct_fields.convert(body, TransformBody)
    except struct_fields.FieldError as error:
        raise invalid_ai_input(error) from None
    return _conversion(converted.files, converted.options)


def _conversion(documents: Sequence[Document], options: Any) -> Conversion:
    if not 1 <= len(documents) <= MAX_FILES:
        raise Refusal(Reason.INPUT_INVALID, f"'/files' must have 1 to {MAX_FILES} items")
    for document in documents:
        if not document.name or len(document.name) > MAX_NAME or not document.name.isprintable():
            raise Refusal(Reason.INPUT_INVALID, f"a file's name must be 1 to {MAX_NAME} printable characters")
    try:
        return Conversion(tuple(documents), parse_options(options))
    except ValueError as error:
        raise Refusal(Reason.INPUT_INVALID, str(error)) from None


async def _convert(
    services: Services, request: ManagementRequest, read: Callable[[], Awaitable[Conversion]]
) -> Response:
    """Convert the files that `read` returns.

    Like a call, a conversion holds a concurrency slot, is subject to the limits of its task, leaves a usage entry, and
    ends when the client disconnects. Raises Refusal, ClientLeft.
    """
    exchange = request.exchange
    principal = services.locations.restrict(request.principal, exchange)
    if not services.ledger.has_room:
        raise Refusal(Reason.DEPENDENCY_DOWN)
    with services.admission.enter(principal.account_id) as slot, services.documents.room(principal.account_id):
        async with quotas.reserve_for_task(services, exchange, principal, TASK):
            conversion = await read()
            reader = await ImageReader.find(services, principal, slot, exchange.request_id)
            read_image = None if reader is None else reader.read
            job = asyncio.create_task(services.documents.convert(principal.account_id, conversion, read_image))

            def stop() -> None:
                job.cancel()

            exchange.on_disconnect(stop)
            slot.stop = stop
            started_at, started_s = services.clock.now(), services.clock.monotonic_s()
            try:
                await asyncio.wait({job})
            finally:
                exchange.on_disconnect(None)
                job.cancel()
            duration_ms = (services.clock.monotonic_s() - started_s) * 1000
            pop = services.settings.pop
            await services.ledger.record(
                _usage_entry(exchange.request_id, principal, conversion, job, pop, started_at, duration_ms)
            )
        if job.cancelled():
            raise Refusal(Reason.ABORTED) if services.admission.is_draining else ClientLeft
        return _respond(job.result())


def _usage_entry(
    request_id: str,
    principal: Principal,
    conversion: Conversion,
    job: asyncio.Task[list[dict[str, Any]]],
    pop: str,
    started_at: datetime,
    duration_ms: float,
) -> UsageEntry:
    """Return the entry of a conversion that has ended, with status `stop`, `client_left` or `refused`. `started_at` is
    when all files had arrived. Conversions are free."""
    failed = job.cancelled() or job.exception() is not None
    rows = [] if failed else job.result()
    texts = [str(row["data"]) for row in rows if "data" in row]
    return UsageEntry(
        request_id=request_id,
        account_id=principal.account_id,
        api_token_id=principal.api_token_id,
        model=TASK,
        revision="",
        task=TASK,
        pop=pop,
        node_id="",
        status="client_left" if job.cancelled() else "refused" if failed else "stop",
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        started_at=started_at,
        ttft_ms=None,
        duration_ms=duration_ms,
        attempts=1,
        micro_neurons=0,
        is_stream=False,
        bytes_in=sum(len(document.data) for document in conversion.documents),
        bytes_out=sum(len(text.encode()) for text in texts),
        is_useful=bool(texts),
    )


async def list_supported(_services: Services, _request: ManagementRequest) -> Response:
    """List the supported file extensions with their media types."""
    return _respond(supported_types())


def _respond(result: object) -> Response:
    return Response(envelope.success(result), media_type="application/json")
