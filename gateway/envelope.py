"""Success and error body shapes: the platform's envelope, and the OpenAI family's bare objects.

An error of the OpenAI or Anthropic family, or of a Worker's binding, carries both shapes in one body, so that either
kind of client finds what it looks for.
Knows no error's meaning: `errors.py` has the table.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.protocol.fields import field_of, pointer_of
from gateway.errors import Reason, Refusal

encode = msgspec.json.Encoder().encode

JSON_HEADER = (b"content-type", b"application/json")  # exactly this: a charset would break Workers bindings

Dialect = Literal["native", "openai", "anthropic", "binding"]  # the family whose clients a route is for

_OPENING, _CLOSING = b'{"result":', b',"success":true,"errors":[],"messages":[]}'

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 408: "timeout_error", 429: "rate_limit_error"}


def success(
    result: Any, *, result_info: dict[str, Any] | None = None, messages: list[dict[str, Any]] | None = None
) -> bytes:
    """`result` in the platform's envelope."""
    body = {"result": result, "success": True, "errors": [], "messages": messages or []}
    if result_info is not None:
        body["result_info"] = result_info
    return encode(body)


def opened(body: bytes) -> bytes:
    """What `success` put into an envelope, as it was before; a body that is in none, as it is."""
    if body.startswith(_OPENING) and body.endswith(_CLOSING):
        return body[len(_OPENING) : -len(_CLOSING)]
    return body


def page_info(page: int, per_page: int, count: int, total_count: int) -> dict[str, int]:
    """`result_info` of a list."""
    total_pages = -(-total_count // per_page)
    return {
        "page": page,
        "per_page": per_page,
        "count": count,
        "total_count": total_count,
        "total_pages": total_pages,
    }


def error(refusal: Refusal, dialect: Dialect = "native", request_id: str = "") -> bytes:
    """The body of a refused request: the envelope, and in it what clients of the route's family look for."""
    body: dict[str, Any] = {
        "result": {} if refusal.row.is_ai or dialect != "native" else None,
        "success": False,
        "errors": [error_entry(refusal)],
        "messages": [],
    }
    if dialect == "openai":
        body = {"error": openai_error(refusal), **body}
    elif dialect == "anthropic":
        body = {"type": "error", "error": anthropic_error(refusal), **body}
    elif dialect == "binding":
        body = {**binding_error(refusal, request_id), **body}
    return encode(body)


def error_entry(refusal: Refusal) -> dict[str, Any]:
    """One of the envelope's `errors`; `source` where a field of the body is at fault."""
    entry: dict[str, Any] = {"code": refusal.row.code, "message": refusal.message}
    pointer = pointer_of(refusal.detail) if refusal.reason is Reason.INPUT_INVALID else None
    return entry if pointer is None else entry | {"source": {"pointer": pointer}}


def binding_error(refusal: Refusal, request_id: str) -> dict[str, Any]:
    """What a Worker's AI binding makes an exception of: its name, and `<internalCode>: <description>` as its text."""
    return {
        "internalCode": refusal.row.code,
        "name": "AiError",
        "message": refusal.message,
        "description": refusal.text,
        "httpCode": refusal.row.status,
        "requestId": request_id,
    }


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """The `error` object of the OpenAI family; also the last event of any stream that breaks."""
    status = refusal.row.status
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    param = field_of(refusal.detail) if refusal.reason is Reason.INPUT_INVALID else refusal.row.field
    return {"message": refusal.message, "type": kind, "param": param, "code": refusal.row.code}


def anthropic_error(refusal: Refusal) -> dict[str, Any]:
    """The `error` object of Anthropic's Messages."""
    status = refusal.row.status
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": kind, "message": refusal.message, "code": refusal.row.code}
