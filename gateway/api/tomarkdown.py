"""`A/ai/tomarkdown`: files to Markdown, several in a call; and which kinds of files that is for."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway import documents, envelope, json_body, multipart
from gateway.api.objects import principal_of
from gateway.errors import Reason, Refusal
from gateway.exchange import Exchange
from gateway.services import Services

_FORM_OVERHEAD_BYTES = 256 * 1024


async def convert(services: Services, request: Request) -> Response:
    """Files as Markdown or plain text. A form of `files`, and perhaps `conversionOptions`; each file has a row in the
    answer, and one that cannot be read says why in its own."""
    services.places.hold(principal_of(request), request.scope["hearth.exchange"])
    limit = services.documents.max_bytes
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit + _FORM_OVERHEAD_BYTES:
        raise Refusal(Reason.BODY_TOO_LARGE, str(limit))
    form = await multipart.read_form(
        multipart.chunks_of(request.receive),
        request.headers.get("content-type", ""),
        None,
        max_bytes=limit + _FORM_OVERHEAD_BYTES,
        stall_timeout_s=services.settings.body_timeout_s,
        repeated=documents.FIELDS,
        max_parts=documents.MAX_FILES + 2,
    )
    return _answer(await services.documents.convert(documents.ask_of_form(form)))


async def transform(services: Services, request: Request) -> Response:
    """The same for a Worker's binding, whose files come in JSON. `files` with name, media type and base64 each, and
    perhaps `options`."""
    exchange: Exchange = request.scope["hearth.exchange"]
    services.places.hold(principal_of(request), exchange)
    max_bytes = services.documents.max_bytes * 4 // 3 + _FORM_OVERHEAD_BYTES
    exchange.check_announced_body(max_bytes)
    body = json_body.parse(await exchange.read_body(max_bytes, services.settings.body_timeout_s))
    return _answer(await services.documents.convert(documents.ask_of_json(body)))


async def list_supported(_services: Services, _request: Request) -> Response:
    """The extensions of files that are converted, with their media types."""
    return _answer(documents.supported())


def _answer(result: object) -> Response:
    return Response(envelope.success(result), media_type="application/json")
