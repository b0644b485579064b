"""OpenAI's Responses: `POST A/ai/v1/responses`, and `responses/input_tokens`, which generates nothing and is free.

Rendering is in `response_renderer.py`; stored responses are served by `stored_responses.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.api_format import ApiFormat
from engine.protocol.fields import BadInput, boolean
from engine.protocol.outcome import Outcome
from engine.protocol.rendering import PromptTokenCount
from engine.protocol.responses import read_response_request
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.vllm_fields import reject_unsupported
from gateway import envelope
from gateway.call import Call, Endpoint, ParsedRequest, StoredRecord
from gateway.inference.response_renderer import ResponseRenderer
from gateway.model_names import require_task


def parse_response(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    """Parse a Responses body. Also used for models that accept one natively."""
    reject_unsupported(body, "responses")
    accepted = input_schema(card, "openai_responses").coerce_and_validate(body)
    request = read_response_request(
        accepted, default_max_tokens=card.default_max_tokens, context_window=card.context_window
    )
    if request.task.constraint is not None and "json_mode" not in card.capabilities:
        raise BadInput("'/text/format' is not supported: the model lacks json_mode")

    def make_renderer(call: Call) -> ResponseRenderer:
        return ResponseRenderer(call.request_id, int(call.started_at.timestamp()), call.requested_model, accepted)

    def make_record(call: Call, outcome: Outcome | None) -> StoredRecord:
        renderer, items = make_renderer(call), input_items(accepted["input"], call.request_id)
        response = renderer.queued() if outcome is None else renderer.response(outcome)
        return StoredRecord(envelope.encode(response), envelope.encode(items))

    return ParsedRequest(
        request.task,
        boolean(accepted, "stream", False),
        make_renderer,
        lora=accepted.get("lora"),
        response_request=request,
        make_record=make_record,
    )


def input_items(given: Any, request_id: str) -> list[dict[str, Any]]:
    """Return the items of an accepted body's `input`, each with an id, and with texts as content parts."""
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    suffix = request_id.replace("-", "")
    return [_input_item(item, f"in_{suffix}{index:02x}") for index, item in enumerate(items)]


def _input_item(item: Mapping[str, Any], item_id: str) -> dict[str, Any]:
    found = {"id": item_id, "type": "message", **item}
    if found["type"] == "message" and isinstance(found.get("content"), str):
        kind = "output_text" if found.get("role") == "assistant" else "input_text"
        part: dict[str, Any] = {"type": kind, "text": found["content"]}
        found["content"] = [part | ({"annotations": []} if kind == "output_text" else {})]
    return found


def _parse(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    require_task(card, TextGeneration)
    return parse_response(card, body)


def _parse_count(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    require_task(card, TextGeneration)
    accepted = input_schema(card, "openai_response_tokens").coerce_and_validate(body)
    request = read_response_request(accepted, default_max_tokens=1, context_window=card.context_window)
    task = structs.replace(request.task, only_counts=True)
    return ParsedRequest(
        task,
        False,
        lambda _call: PromptTokenCount({"object": "response.input_tokens"}),
        response_request=dataclasses.replace(request, task=task, is_stored=False),
    )


RESPONSES = Endpoint(ApiFormat.OPENAI, "Create a response.", _parse, schemas=("openai_responses",))
RESPONSE_TOKENS = Endpoint(
    ApiFormat.OPENAI,
    "Count the input tokens of a response, at no cost.",
    _parse_count,
    schemas=("openai_response_tokens",),
)
