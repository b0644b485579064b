"""One table: every way a request to the standalone server can fail -> HTTP status and OpenAI's error object."""

from __future__ import annotations

import random

import msgspec

from engine.protocol.events import Failed, FailureReason
from engine.protocol.fields import field_of

# reason -> status, type, code
_FAILURES: dict[FailureReason, tuple[int, str, str | None]] = {
    "invalid_input": (400, "invalid_request_error", None),
    "context_too_long": (400, "invalid_request_error", "context_length_exceeded"),
    "constraint_failed": (400, "invalid_request_error", "constraint_failed"),
    "out_of_capacity": (429, "rate_limit_error", "out_of_capacity"),
    "model_unavailable": (503, "server_error", "model_unavailable"),
    "timeout": (504, "server_error", "timeout"),
    "aborted": (503, "server_error", "shutting_down"),  # nobody else cancels: the server's patience ended in a drain
    "draining": (503, "server_error", "shutting_down"),
    "internal": (500, "server_error", None),
}
_MESSAGES: dict[FailureReason, str] = {
    "aborted": "the server is shutting down and did not wait for this answer",
    "draining": "the server is shutting down",
}


class HttpError(Exception):
    """A request that ends here. `param` is the field at fault, in OpenAI's spelling."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        allow: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param or field_of(message)
        self.allow = allow

    def body(self) -> bytes:
        """`{"error": {message, type, param, code}}`."""
        shown = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": shown})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """429 and 503 say when to come back, spread a little; 401 what is wanted; 405 what there is."""
        headers = []
        if self.status in (429, 503):
            headers.append((b"retry-after", b"%d" % random.randint(1, 3)))  # noqa: S311 - spreads, guards nothing
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.status == 413:
            headers.append((b"connection", b"close"))  # the rest of the body is not waited for
        if self.allow:
            headers.append((b"allow", self.allow.encode()))
        return headers


def of_failure(failed: Failed) -> HttpError:
    """What a Failed means to the client."""
    if failed.is_blocked:
        return HttpError(400, failed.message, code="input_blocked")
    status, kind, code = _FAILURES[failed.reason]
    if failed.reason == "internal" and failed.is_retryable:
        status = 503  # its process ended, and is being started anew
    message = _MESSAGES.get(failed.reason) or failed.message or failed.reason
    return HttpError(status, message, kind=kind, code=code)


def unknown_model(name: str) -> HttpError:
    return HttpError(404, f"The model '{name}' does not exist.", code="model_not_found", param="model")


def error_frame(error: HttpError) -> bytes:
    """The last event of a stream that breaks."""
    return b"data: " + error.body() + b"\n\n"
