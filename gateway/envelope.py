"""Bodies of responses and errors: the platform's envelope, and the error objects of the OpenAI and Anthropic formats.

An error in the OpenAI or Anthropic format, or for a Worker's binding, also has the fields of the envelope, so that
clients of either kind find theirs. The meaning of each error is in `errors.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.protocol.api_format import ApiFormat
from engine.protocol.fields import field_of, pointer_of
from gateway.errors import Reason, Refusal

encode = msgspec.json.Encoder().encode

JSON_HEADER = (b"content-type", b"application/json")  # without charset, which Workers bindings reject

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
    """Return `result` in the envelope."""
    body = {"result": result, "success": True, "errors": [], "messages": messages or []}
    if result_info is not None:
        body["result_info"] = result_info
    return encode(body)


def wrap(result: bytes) -> bytes:
    """Return a JSON document in the envelope."""
    return _OPENING + result + _CLOSING


def unwrap(body: bytes) -> bytes:
    """Return the result inside an envelope; a body without envelope is returned as is."""
    if body.startswith(_OPENING) and body.endswith(_CLOSING):
        return body[len(_OPENING) : -len(_CLOSING)]
    return body


def page_info(page: int, per_page: int, count: int, total_count: int) -> dict[str, int]:
    """Return the `result_info` of a list."""
    total_pages = -(-total_count // per_page)
    return {
        "page": page,
        "per_page": per_page,
        "count": count,
        "total_count": total_count,
        "total_pages": total_pages,
    }


def error(
    refusal: Refusal,
    api_format: ApiFormat = ApiFormat.NATIVE,
    request_id: str = "",
    *,
    is_binding: bool = False,
) -> bytes:
    """Return the body of an error response. `is_binding`: the client is a Worker's AI binding."""
    has_object = refusal.row.is_ai or is_binding or api_format is not ApiFormat.NATIVE
    body: dict[str, Any] = {
        "result": {} if has_object else None,
        "success": False,
        "errors": [error_entry(refusal)],
        "messages": [],
    }
    if is_binding:
        body = {**binding_error(refusal, request_id), **body}
    elif api_format is ApiFormat.OPENAI:
        body = {"error": openai_error(refusal), **body}
    elif api_format is ApiFormat.ANTHROPIC:
        body = {"type": "error", "error": anthropic_error(refusal), **body}
    return encode(body)


def error_frame(refusal: Refusal) -> bytes:
    """Return the last event of a broken stream, for native and OpenAI clients."""
    body = {"error": openai_error(refusal), "errors": [error_entry(refusal)]}
    return b"data: " + encode(body) + b"\n\n"


def error_entry(refusal: Refusal) -> dict[str, Any]:
    """Return one of the envelope's `errors`; `source` names the field of the body at fault, if any."""
    entry: dict[str, Any] = {"code": refusal.row.code, "message": refusal.message_with_hint}
    pointer = pointer_of(refusal.detail) if refusal.reason is Reason.INPUT_INVALID else None
    return entry if pointer is None else entry | {"source": {"pointer": pointer}}


def binding_error(refusal: Refusal, request_id: str) -> dict[str, Any]:
    """Return the fields from which a Worker's AI binding builds an exception: its name, and the text
    `<internalCode>: <description>`."""
    return {
        "internalCode": refusal.row.code,
        "name": "AiError",
        "message": refusal.message,
        "description": refusal.text,
        "httpCode": refusal.row.status,
        "requestId": request_id,
    }


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """Return the `error` object of the OpenAI format."""
    status = refusal.row.status
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    param = field_of(refusal.detail) if refusal.reason is Reason.INPUT_INVALID else refusal.row.field
    return {"message": refusal.message_with_hint, "type": kind, "param": param, "code": refusal.row.code}


def anthropic_error(refusal: Refusal) -> dict[str, Any]:
    """Return the `error` object of the Anthropic format."""
    status = refusal.row.status
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": kind, "message": refusal.message_with_hint, "code": refusal.row.code}
