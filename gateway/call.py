"""The values that travel through the pipeline: `Endpoint`, `ParsedRequest` and `Call`. All are frozen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec import Struct

from catalog.card import ModelCard
from engine.protocol.api_format import ApiFormat
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import Renderer
from engine.protocol.responses import ResponseRequest
from engine.protocol.tasks.registry import TaskInput
from gateway.http import json_body
from gateway.http.exchange import Exchange
from tenants.credentials.principal import Principal


class Call(Struct, frozen=True, kw_only=True):
    """One authenticated inference call.

    | Field | Meaning |
    |---|---|
    | `card`, `requested_model` | the model that runs, and the model id that the client used |
    | `namespace` | 32 bytes that key the prefix cache of the account |
    | `tenant` | number of the account, for fairness between tenants on a node |
    | `affinity` | key that places similar calls on the same node |
    | `num_estimated_tokens` | prompt and completion tokens, estimated from the text length |
    | `started_at`, `started_s` | time of arrival: wall clock, and monotonic clock in seconds |
    | `deadline_s` | time of the event loop, which can be coarser than the monotonic clock |
    | `is_batch` | the call comes from a queued batch and has the batch price |
    | `num_bytes_in` | length of the request body |
    | `body_hash`, `is_retry` | for `RetryTracker`; 0 if the client sends no retry header |
    | `traceparent` | W3C trace context of the call's span; "" if the call is not traced |
    """

    request_id: str
    principal: Principal
    card: ModelCard
    requested_model: str
    task: TaskInput
    is_stream: bool
    namespace: bytes
    tenant: int
    affinity: bytes
    num_estimated_tokens: int
    started_at: datetime
    started_s: float
    deadline_s: float
    is_batch: bool = False
    num_bytes_in: int = 0
    body_hash: int = 0
    is_retry: bool = False
    traceparent: str = ""


class StoredRecord(Struct, frozen=True):
    """A stored response and the items of its input, both as JSON. A background response is stored with status `queued`
    until it has finished."""

    response: bytes
    input_items: bytes


def _no_record(_call: Call, _outcome: Outcome | None) -> StoredRecord:
    raise AssertionError("only requests of the Responses API are stored")


class ParsedRequest(Struct, frozen=True):
    """A request body after parsing.

    `make_renderer` returns a renderer of the response to the call. `lora` names a fine-tune. `more_tasks` are further
    prompts of the same body, each of which becomes a call with as many choices. `response_request` is set for requests
    of the Responses API; `make_record` then returns the record to store, also before there is an outcome.
    """

    task: TaskInput
    is_stream: bool
    make_renderer: Callable[[Call], Renderer]
    lora: str | None = None
    more_tasks: tuple[TaskInput, ...] = ()
    response_request: ResponseRequest | None = None
    make_record: Callable[[Call, Outcome | None], StoredRecord] = _no_record


async def _decode_json(_exchange: Exchange, body: bytes) -> dict[str, Any]:
    return json_body.parse(body)


@dataclass(frozen=True)
class Endpoint:
    """One family of inference routes.

    `summary` describes the route in the OpenAPI document. `parse` reads a decoded body for a model. `schemas` names
    files in `catalog/schemas/` that describe bodies and responses; empty means that of each card. `decode_body` decodes
    the bytes of a body of type `body_media_type`. The model's name comes from the path, or else from `find_model_name`,
    or else from the body's `model`. With `accepts_batches` a body may also hold several requests, or poll a batch
    (`jobs/batch_request.py`).
    """

    api_format: ApiFormat
    summary: str
    parse: Callable[[ModelCard, dict[str, Any]], ParsedRequest]
    schemas: tuple[str, ...] = ()
    decode_body: Callable[[Exchange, bytes], Awaitable[dict[str, Any]]] = _decode_json
    body_media_type: str = "application/json"
    find_model_name: Callable[[Exchange], str] | None = None
    accepts_batches: bool = False


@dataclass(frozen=True)
class WebSocketEndpoint:
    """A route that accepts WebSockets. `summary` and `query` describe the route in the OpenAPI document.

    `serve` serves one WebSocket. Its arguments are the services, the exchange, the authorized principal, a function
    that verifies the credential again, and the model's name in the path.
    """

    summary: str
    query: type[Struct]
    serve: Callable[..., Awaitable[None]]
