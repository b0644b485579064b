"""`POST A/ai/v1/messages`: text generation for Anthropic's clients, bare objects and their named events."""

from __future__ import annotations

from typing import Any

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.anthropic import message_request
from engine.protocol.fields import boolean
from gateway.call import Asked, Door
from gateway.inference.text_models import check_is_text
from gateway.shapes.message import MessageText


def _read(card: ModelCard, body: dict[str, Any]) -> Asked:
    check_is_text(card)
    admitted = input_schema(card, "messages").coerce_and_validate(body)
    task = message_request(admitted, default_max_tokens=card.default_max_tokens, context_window=card.context_window)
    return Asked(
        task,
        boolean(admitted, "stream", False),
        lambda call: MessageText(call.request_id, call.shown_model),
        lora=admitted.get("lora"),
    )


MESSAGES = Door(is_openai=True, read=_read, schemas=("anthropic_messages",))
