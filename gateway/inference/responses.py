"""`POST A/ai/v1/responses`: OpenAI's Responses, bare objects and their events, one after another in a thread."""

from __future__ import annotations

from typing import Any

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.fields import boolean
from engine.protocol.outcome import Outcome
from engine.protocol.responses import response_request
from engine.protocol.vllm_fields import refuse_unsupported
from gateway import envelope
from gateway.call import Asked, Call, Door, Record
from gateway.inference.text_models import check_format, check_is_text
from gateway.shapes.response import ResponseText, input_items


def read_response(card: ModelCard, body: dict[str, Any], *, is_bare: bool) -> Asked:
    """A Responses body, for this door and for models that take it natively."""
    refuse_unsupported(body, "responses")
    admitted = input_schema(card, "responses").coerce_and_validate(body)
    request = response_request(admitted, default_max_tokens=card.default_max_tokens, context_window=card.context_window)
    check_format(card, request.task, "/text/format")

    def make_shape(call: Call) -> ResponseText:
        return ResponseText(
            call.request_id, int(call.started_at.timestamp()), call.shown_model, admitted, is_bare=is_bare
        )

    def make_record(call: Call, outcome: Outcome | None) -> Record:
        shape, items = make_shape(call), input_items(admitted["input"], call.request_id)
        response = shape.queued() if outcome is None else shape.told(outcome)
        return Record(envelope.encode(response), envelope.encode(items))

    is_stream, lora = boolean(admitted, "stream", False), admitted.get("lora")
    return Asked(request.task, is_stream, make_shape, request, make_record, lora=lora)


def _read(card: ModelCard, body: dict[str, Any]) -> Asked:
    check_is_text(card)
    return read_response(card, body, is_bare=True)


RESPONSES = Door(is_openai=True, read=_read, schemas=("openai_responses",))
