"""What a body of `ai/run` asks about batches: to queue requests, to run them now, or how a queued batch stands. Pure.

A run in the background is a batch, with or without a webhook that its answers go to. Each request of a batch is
admitted by its own when it is run: here only what they have in common is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from catalog.card import ModelCard
from gateway.call import CHARACTERS_PER_TOKEN
from gateway.errors import Reason, Refusal
from gateway.jobs.webhook import Webhook, webhook_in

MAX_REFERENCE_CHARACTERS = 512
MAX_NOW = 100  # requests that are run while the client waits
CHUNK_REQUESTS = 64
CHUNK_TOKENS = 32_768

_TRUE = ("true", "1")
_JSON_TYPES = (str, int, float, list, dict)
_BATCH_ID = re.compile(r"[0-9a-f-]{36}")

Request = dict[str, Any]


@dataclass(frozen=True)
class Queue:
    """Run these some time, and keep the answers; send them to the webhook too."""

    requests: list[Request]
    webhook: Webhook | None = None


@dataclass(frozen=True)
class RunNow:
    """Run these while the client waits."""

    requests: list[Request]


@dataclass(frozen=True)
class Poll:
    """How does this batch stand, and what are its answers?"""

    batch_id: str


def options_in(query: bytes, body: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run, from the query or from the body's own `options`."""
    options = dict(parse_qsl(query.decode("ascii", "replace"))) if query else {}
    inner = body.get("options")
    return options | inner if isinstance(inner, dict) else options


def rejects_if_busy(options: Mapping[str, Any]) -> bool:
    """Whether a call would rather be refused than wait for its turn."""
    return _is_true(options.get("rejectIfBusy"))


def asked_of(options: Mapping[str, Any], body: Mapping[str, Any], max_requests: int) -> Queue | RunNow | Poll | None:
    """None for a body that is one plain call. Raises Refusal."""
    is_background = _is_true(options.get("background"))
    is_queued = is_background or _is_true(options.get("queueRequest"))
    webhook = webhook_in(options, is_background=is_background, is_single="requests" not in body)
    if "requests" in body:
        is_large = is_queued and webhook is None  # what is sent is sent in one piece
        requests = _requests_in(body["requests"], max_requests if is_large else min(MAX_NOW, max_requests))
        return Queue(requests, webhook) if is_queued else RunNow(requests)
    if "request_id" in body and (is_queued or body.keys() <= {"request_id", "options"}):
        batch_id = body["request_id"]
        if not isinstance(batch_id, str):
            raise Refusal(Reason.INPUT_INVALID, "Type mismatch of '/request_id', expected 'string'")
        if not _BATCH_ID.fullmatch(batch_id):
            raise Refusal(Reason.BATCH_UNKNOWN)
        return Poll(batch_id)
    if not is_queued:
        return None
    if not all(value is None or isinstance(value, _JSON_TYPES) for value in body.values()):
        name = "background" if is_background else "queueRequest"
        raise Refusal(Reason.INPUT_INVALID, f"'/options/{name}' is for inputs that come as JSON")
    return Queue(_requests_in([dict(body)], 1), webhook)


def call_of(request: Request) -> Request:
    """The body of the call that a request of a batch is. Nobody could listen to a stream."""
    return {name: value for name, value in request.items() if name not in ("external_reference", "stream", "options")}


def chunks_of(requests: list[Request], card: ModelCard) -> list[tuple[int, list[Request], int]]:
    """(number of the first, requests, tokens guessed) of what is taken together, in order."""
    chunks: list[tuple[int, list[Request], int]] = []
    chunk: list[Request] = []
    cost = first = 0
    for number, request in enumerate(requests):
        own = _cost_of(request, card)
        if chunk and (len(chunk) == CHUNK_REQUESTS or cost + own > CHUNK_TOKENS):
            chunks.append((first, chunk, cost))
            chunk, cost, first = [], 0, number
        chunk.append(request)
        cost += own
    chunks.append((first, chunk, cost))
    return chunks


def _cost_of(request: Request, card: ModelCard) -> int:
    """Tokens, guessed from a request that nobody has admitted yet."""
    answer = 0
    if card.task_slug == "text-generation":
        asked = [request.get(name) for name in ("max_tokens", "max_completion_tokens")]
        answer = next((n for n in asked if type(n) is int and 0 < n <= card.context_window), card.default_max_tokens)
    return 1 + answer + _num_characters(request) // CHARACTERS_PER_TOKEN


def _num_characters(request: Request) -> int:
    """Of all texts in it; the bodies' guard has bounded how deep they lie."""
    found = 0
    stack: list[Any] = [request]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            found += len(value)
        elif isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
    return found


def _requests_in(value: Any, max_requests: int) -> list[Request]:
    if not isinstance(value, list):
        raise Refusal(Reason.INPUT_INVALID, "Type mismatch of '/requests', expected 'array'")
    if not 1 <= len(value) <= max_requests:
        raise Refusal(Reason.INPUT_INVALID, f"'/requests' must have 1 to {max_requests} items")
    for number, request in enumerate(value):
        if not isinstance(request, dict):
            raise Refusal(Reason.INPUT_INVALID, f"Type mismatch of '/requests/{number}', expected 'object'")
        reference = request.get("external_reference")
        if reference is not None and not (isinstance(reference, str) and len(reference) <= MAX_REFERENCE_CHARACTERS):
            limit = f"must be a text of at most {MAX_REFERENCE_CHARACTERS} characters"
            raise Refusal(Reason.INPUT_INVALID, f"'/requests/{number}/external_reference' {limit}")
    return value


def _is_true(value: Any) -> bool:
    """Options come as booleans or as texts; a client's `undefined` is none."""
    return value is True or (isinstance(value, str) and value.lower() in _TRUE)
