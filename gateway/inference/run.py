"""Workers AI's native format: `POST A/ai/run/{model}`, and `POST A/ai/run` with the model named in the body.

Each task reads and renders its own native format (`engine/protocol/tasks/`). With `requests` a body holds a batch,
which is queued if the query says `queueRequest=true`; `request_id` polls a queued batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.api_format import ApiFormat
from engine.protocol.fields import boolean
from engine.protocol.tasks.registry import TASKS
from gateway.call import Endpoint, ParsedRequest
from gateway.errors import Reason, Refusal
from gateway.http import json_body
from gateway.http.exchange import Exchange
from gateway.inference.chat_completions import parse_chat
from gateway.inference.completions import parse_completion
from gateway.inference.responses import parse_response


def parse_native(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    """Parse a body in the native format of a card, which can be one of OpenAI's formats."""
    if card.schema == "text_generation_responses":
        return _parse_by_field(card, body)
    if card.native_shape == "chat_completion":
        return parse_chat(card, body, card.schema)
    accepted = input_schema(card).coerce_and_validate(body)
    task = TASKS[card.task_slug].read_native(accepted, card)
    return ParsedRequest(
        task,
        task.can_stream and boolean(accepted, "stream", False),
        lambda _call: task.native_renderer(),
        lora=accepted.get("lora"),
    )


def _parse_by_field(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    """Parse a body for a card that accepts three formats; the field that is present decides which."""
    if body.get("input") is not None:
        return parse_response(card, body)
    if body.get("messages") is None and body.get("prompt") is not None:
        return parse_completion(card, body)
    return parse_chat(card, body)


async def _decode_named(_exchange: Exchange, raw: bytes) -> dict[str, Any]:
    """Decode `{"model", "input", "options"}` into a body as the route with the model in its path receives it."""
    body = json_body.parse(raw)
    if body.get("input") is None:
        raise Refusal(Reason.INPUT_INVALID, "required properties at '/' are 'input'")
    inputs, options = require_object(body["input"], "input"), require_object(body.get("options") or {}, "options")
    return inputs | {"model": body.get("model"), "options": options}


def require_object(value: Any, name: str) -> dict[str, Any]:
    """Return a field that must be an object. Raises Refusal."""
    if not isinstance(value, dict):
        raise Refusal(Reason.INPUT_INVALID, f"Type mismatch of '/{name}', expected 'object'")
    return value


RUN = Endpoint(ApiFormat.NATIVE, "Run a model with inputs in its native format.", parse_native, accepts_batches=True)
RUN_NAMED = replace(
    RUN, summary="Run the model that the body names.", schemas=("run_named",), decode_body=_decode_named
)
