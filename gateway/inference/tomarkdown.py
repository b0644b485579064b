"""`A/ai/tomarkdown`: files to Markdown, several in a call; and which kinds of files that is for."""

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
from gateway.inference.markdown_conversion import FIELDS, MAX_FILES, Ask, ask_of_form, ask_of_json, supported
from gateway.inference.markdown_usage import TASK, entry_of
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
    """Files as Markdown or plain text. A form of `files`, and perhaps `conversionOptions`; each file has a row in the
    answer, and one that cannot be read says why in its own."""

    async def read() -> Ask:
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
        return ask_of_form(form)

    return await _converted(services, request, read)


class TransformBody(Struct, frozen=True):
    """Files with name, media type and base64 content, and conversion options."""

    files: list[dict[str, str]]
    options: dict[str, Any] | None = None


@describe(body=TransformBody)
async def transform(services: Services, request: Request) -> Response:
    """The same for a Worker's binding, whose files come in JSON. `files` with name, media type and base64 each, and
    perhaps `options`."""
    exchange: Exchange = request.scope["hearth.exchange"]

    async def read() -> Ask:
        max_bytes = services.documents.max_bytes * 4 // 3 + _FORM_OVERHEAD_BYTES
        exchange.check_content_length(max_bytes)
        body = await exchange.read_body(max_bytes, services.settings.body_timeout_s)
        return ask_of_json(json_body.parse(body))

    return await _converted(services, request, read)


async def _converted(services: Services, request: Request, read: Callable[[], Awaitable[Ask]]) -> Response:
    """The answer to what `read` reads. It holds a place as a call does, so that a drain waits for it, is held to the
    limits of its task, and leaves a usage entry; a client that leaves ends it. Raises Refusal, ClientLeft."""
    exchange: Exchange = request.scope["hearth.exchange"]
    principal = services.places.hold(principal_of(request), exchange)
    if not services.ledger.has_room:
        raise Refusal(Reason.DEPENDENCY_DOWN)
    with services.admission.enter(principal.account_id) as place, services.documents.room():
        async with quotas.held_beside(services, exchange, principal, TASK):
            ask = await read()
            job = asyncio.create_task(services.documents.convert(ask))

            def stop() -> None:
                job.cancel()

            exchange.on_disconnect(stop)
            place.stop = stop
            started_at, started_s = services.clock.now(), services.clock.monotonic_s()
            try:
                await asyncio.wait({job})
            finally:
                exchange.on_disconnect(None)
                job.cancel()
            entry = entry_of(
                exchange.request_id,
                principal,
                ask,
                job,
                pop=services.settings.pop,
                started_at=started_at,
                duration_ms=(services.clock.monotonic_s() - started_s) * 1000,
            )
            await services.ledger.record(entry)
        if job.cancelled():
            raise Refusal(Reason.ABORTED) if services.admission.is_draining else ClientLeft
        return _answer(job.result())


async def list_supported(_services: Services, _request: Request) -> Response:
    """The extensions of files that are converted, with their media types."""
    return _answer(supported())


def _answer(result: object) -> Response:
    return Response(envelope.success(result), media_type="application/json")
