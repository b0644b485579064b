"""Batches in the body of `ai/run`: several requests to queue or to run now, or the poll of a queued batch. Pure.

A background run is a batch of one, with or without a webhook for its response. Each request is validated when it runs;
only the fields that all of them share are read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from catalog.card import ModelCard
from engine.protocol.tasks.registry import TASKS
from engine.protocol.tasks.task import CHARACTERS_PER_TOKEN
from gateway.errors import Reason, Refusal
from gateway.jobs.webhook import Webhook, read_webhook

MAX_REFERENCE_CHARACTERS = 512
MAX_SYNCHRONOUS = 100  # requests of a batch that runs while the client waits
CHUNK_REQUESTS = 64
CHUNK_TOKENS = 32_768

_TRUE = ("true", "1")
_JSON_TYPES = (str, int, float, list, dict)
_BATCH_ID = re.compile(r"[0-9a-f-]{36}")

Request = dict[str, Any]


@dataclass(frozen=True)
class QueuedBatch:
    """Requests to run later. The results are stored, and sent to the webhook, if there is one."""

    requests: list[Request]
    webhook: Webhook | None = None


@dataclass(frozen=True)
class SynchronousBatch:
    """Requests to run while the client waits."""

    requests: list[Request]


@dataclass(frozen=True)
class BatchPoll:
    """Asks for the status and the results of a queued batch."""

    batch_id: str


def read_options(query: bytes, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run, from the query and the body's `options`; the latter take precedence."""
    options = dict(parse_qsl(query.decode("ascii", "replace"))) if query else {}
    inner = body.get("options")
    return options | inner if isinstance(inner, dict) else options


def rejects_if_busy(query: bytes, raw: bytes, body: Mapping[str, Any]) -> bool:
    """Return True if the request shall be refused rather than wait for a free node. `raw` is the body's text."""
    if b"rejectIfBusy" not in raw and b"rejectIfBusy" not in query:
        return False
    return _is_true(read_options(query, body).get("rejectIfBusy"))


def read_batch(
    query: bytes, body: Mapping[str, Any], max_requests: int
) -> QueuedBatch | SynchronousBatch | BatchPoll | None:
    """Return the batch or poll in a request; None for a single request that runs now. Raises Refusal."""
    options = read_options(query, body)
    is_background = _is_true(options.get("background"))
    is_queued = is_background or _is_true(options.get("queueRequest"))
    webhook = read_webhook(options, is_background=is_background, is_single="requests" not in body)
    if "requests" in body:
        is_large = is_queued and webhook is None  # a webhook receives all results in one body
        requests = _read_requests(body["requests"], max_requests if is_large else min(MAX_SYNCHRONOUS, max_requests))
        return QueuedBatch(requests, webhook) if is_queued else SynchronousBatch(requests)
    if "request_id" in body and (is_queued or body.keys() <= {"request_id", "options"}):
        batch_id = body["request_id"]
        if not isinstance(batch_id, str):
            raise Refusal(Reason.INPUT_INVALID, "Type mismatch of '/request_id', expected 'string'")
        if not _BATCH_ID.fullmatch(batch_id):
            raise Refusal(Reason.BATCH_UNKNOWN)
        return BatchPoll(batch_id)
    if not is_queued:
        return None
    if not all(value is None or isinstance(value, _JSON_TYPES) for value in body.values()):
        name = "background" if is_background else "queueRequest"
        raise Refusal(Reason.INPUT_INVALID, f"'/options/{name}' supports JSON inputs only")
    return QueuedBatch(_read_requests([dict(body)], 1), webhook)


def call_body(request: Request) -> Request:
    """Return the body of the call for a request of a batch, without the fields of the batch. Batches do not stream."""
    return {name: value for name, value in request.items() if name not in ("external_reference", "stream", "options")}


def chunks_of(requests: list[Request], card: ModelCard) -> list[tuple[int, list[Request], int]]:
    """Return (number of the first request, requests, estimated tokens) of each chunk, in order."""
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
    """Return the estimated tokens of a request that has not been validated."""
    completion_tokens = TASKS[card.task_slug].estimate_completion_tokens(request, card)
    return 1 + completion_tokens + _num_characters(request) // CHARACTERS_PER_TOKEN


def _num_characters(value: Any) -> int:
    """Return the total length of all strings in a JSON value, whose depth is limited by `http/json_body.py`."""
    if isinstance(value, str):
        return len(value)
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_num_characters, members))


def _read_requests(value: Any, max_requests: int) -> list[Request]:
    if not isinstance(value, list):
        raise Refusal(Reason.INPUT_INVALID, "Type mismatch of '/requests', expected 'array'")
    if not 1 <= len(value) <= max_requests:
        raise Refusal(Reason.INPUT_INVALID, f"'/requests' must have 1 to {max_requests} items")
    for number, request in enumerate(value):
        if not isinstance(request, dict):
            raise Refusal(Reason.INPUT_INVALID, f"Type mismatch of '/requests/{number}', expected 'object'")
        reference = request.get("external_reference")
        if reference is not None and not (isinstance(reference, str) and len(reference) <= MAX_REFERENCE_CHARACTERS):
            limit = f"must be a string of at most {MAX_REFERENCE_CHARACTERS} characters"
            raise Refusal(Reason.INPUT_INVALID, f"'/requests/{number}/external_reference' {limit}")
    return value


def _is_true(value: Any) -> bool:
    """Options are booleans or strings; clients send `undefined` for omitted ones."""
    return value is True or (isinstance(value, str) and value.lower() in _TRUE)
