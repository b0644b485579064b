"""`A/ai/tomarkdown`: convert files to Markdown, and list the supported types of files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from gateway import envelope, quotas
from gateway.errors import ClientLeft, Reason, Refusal
from gateway.http import json_body, multipart
from gateway.http.exchange import Exchange
from gateway.inference.markdown_conversion import FIELDS, MAX_FILES, Conversion, read_form, read_json, supported_types
from gateway.inference.markdown_usage import TASK, conversion_entry
from gateway.management.endpoint import principal_of
from gateway.openapi.operation import describe
from gateway.services import Services

_FORM_OVERHEAD_BYTES = 256 * 1024


class ConvertForm(Struct, frozen=True):
    """The form of files to convert."""

    files: list[Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})]]
    conversionOptions: Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/json"})] = ""  # noqa: N815 - the name in the API


@describe(body=ConvertForm, body_media_type="multipart/form-data")
async def convert(services: Services, request: Request) -> Response:
    """Convert files to Markdown or plain text. The form has `files` and optionally `conversionOptions`; the response
    has a row for each file, with an error for a file that cannot be read."""

    async def read() -> Conversion:
        limit = services.documents.max_bytes
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > limit + _FORM_OVERHEAD_BYTES:
            raise Refusal(Reason.BODY_TOO_LARGE, str(limit))
        form = await multipart.read_form(
            multipart.body_chunks(request.receive),
            request.headers.get("content-type", ""),
            None,
            max_bytes=limit + _FORM_OVERHEAD_BYTES,
            stall_timeout_s=services.settings.body_timeout_s,
            repeated=FIELDS,
            max_parts=MAX_FILES + 2,
        )
        return read_form(form)

    return await _convert(services, request, read)


class TransformBody(Struct, frozen=True):
    """Files with name, media type and base64 content, and conversion options."""

    files: list[dict[str, str]]
    options: dict[str, Any] | None = None


@describe(body=TransformBody)
async def transform(services: Services, request: Request) -> Response:
    """Convert files in JSON, as a Worker's binding sends them: `files` with name, media type and base64 content, and
    optionally `options`."""
    exchange: Exchange = request.scope["hearth.exchange"]

    async def read() -> Conversion:
        max_bytes = services.documents.max_bytes * 4 // 3 + _FORM_OVERHEAD_BYTES
        exchange.check_content_length(max_bytes)
        body = await exchange.read_body(max_bytes, services.settings.body_timeout_s)
        return read_json(json_body.parse(body))

    return await _convert(services, request, read)


async def _convert(services: Services, request: Request, read: Callable[[], Awaitable[Conversion]]) -> Response:
    """Convert the files that `read` returns.

    Like a call, a conversion holds a concurrency slot, is subject to the limits of its task, leaves a usage entry, and
    ends when the client disconnects. Raises Refusal, ClientLeft.
    """
    exchange: Exchange = request.scope["hearth.exchange"]
    principal = services.locations.restrict(principal_of(request), exchange)
    if not services.ledger.has_room:
        raise Refusal(Reason.DEPENDENCY_DOWN)
    with services.admission.enter(principal.account_id) as slot, services.documents.room():
        async with quotas.reserve_for_task(services, exchange, principal, TASK):
            conversion = await read()
            job = asyncio.create_task(services.documents.convert(conversion))

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
            entry = conversion_entry(
                exchange.request_id,
                principal,
                conversion,
                job,
                pop=services.settings.pop,
                started_at=started_at,
                duration_ms=(services.clock.monotonic_s() - started_s) * 1000,
            )
            await services.ledger.record(entry)
        if job.cancelled():
            raise Refusal(Reason.ABORTED) if services.admission.is_draining else ClientLeft
        return _respond(job.result())


async def list_supported(_services: Services, _request: Request) -> Response:
    """List the supported file extensions with their media types."""
    return _respond(supported_types())


def _respond(result: object) -> Response:
    return Response(envelope.success(result), media_type="application/json")
