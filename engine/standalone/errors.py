"""All errors of the standalone server: HTTP status and OpenAI error object of each."""

from __future__ import annotations

import random

import msgspec
from starlette.responses import Response

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
    "aborted": (503, "server_error", "shutting_down"),  # calls are cancelled only at the end of the drain timeout
    "draining": (503, "server_error", "shutting_down"),
    "internal": (500, "server_error", None),
}
_MESSAGES: dict[FailureReason, str] = {
    "aborted": "the server is shutting down and did not wait for this response",
    "draining": "the server is shutting down",
}


class HttpError(Exception):
    """An error that ends the request. `param` is the invalid field in OpenAI's notation."""

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
        """Return `{"error": {message, type, param, code}}`."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> Response:
        """Return the response, with `retry-after` (with jitter) for 429 and 503, `www-authenticate` for 401 and
        `allow` for 405."""
        headers = {}
        if self.status in (429, 503):
            headers["retry-after"] = str(random.randint(1, 3))  # noqa: S311 - spreads retries, protects nothing
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status == 413:
            headers["connection"] = "close"  # the rest of the body is not read
        if self.allow:
            headers["allow"] = self.allow
        return Response(self.body(), self.status, headers, "application/json")


def of_failure(failed: Failed) -> HttpError:
    """Return the HTTP error of a Failed event."""
    if failed.is_blocked:
        return HttpError(400, failed.message, code="input_blocked")
    status, kind, code = _FAILURES[failed.reason]
    if failed.reason == "internal" and failed.is_retryable:
        status = 503  # the model's process ended and is being restarted
    message = _MESSAGES.get(failed.reason) or failed.message or failed.reason
    return HttpError(status, message, kind=kind, code=code)


def unknown_model(name: str) -> HttpError:
    return HttpError(404, f"The model '{name}' does not exist.", code="model_not_found", param="model")


def error_frame(error: HttpError) -> bytes:
    """Return the last event of a failed stream."""
    return b"data: " + error.body() + b"\n\n"
