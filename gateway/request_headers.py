"""Headers of inference requests that are validated before the body is read, and headers of every inference response."""

from __future__ import annotations

import re

from catalog.registry import Resolved
from engine.protocol.api_format import ApiFormat
from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange, Headers

_SESSION = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_IDEMPOTENCY_KEY = re.compile(rb"[ -~]{1,255}")


def read_session(exchange: Exchange) -> bytes | None:
    """Return the client's session affinity. Raises Refusal if it is malformed."""
    session = exchange.header(b"x-session-affinity")
    if session is not None and not _SESSION.fullmatch(session):
        raise Refusal(Reason.HEADER_INVALID, "x-session-affinity must be 1 to 128 of A-Z a-z 0-9 . _ : -")
    return session


def read_idempotency_key(exchange: Exchange) -> bytes | None:
    """Return the idempotency key. Raises Refusal if it is malformed."""
    key = exchange.header(b"idempotency-key")
    if key is not None and not _IDEMPOTENCY_KEY.fullmatch(key):
        raise Refusal(Reason.HEADER_INVALID, "idempotency-key must be 1 to 255 printable ASCII characters")
    return key


def model_headers(exchange: Exchange, model: Resolved) -> Headers:
    """Return the headers of every response once the model is known, errors included."""
    headers = [(b"cf-ai-req-id", exchange.request_id.encode())]
    if exchange.api_format is ApiFormat.ANTHROPIC:
        headers.append((b"request-id", exchange.request_id.encode()))
    if model.alias_of is not None:
        headers.append((b"x-hearth-model", model.alias_of.encode()))
    return headers
