"""`POST A/ai/v1/messages/count_tokens`: how many tokens the prompt of such a message has, at no cost.

The model's own tokenizer and template count, tools included; nothing is generated.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.anthropic import message_request
from gateway.call import Asked, Door
from gateway.inference.text_models import check_is_text
from gateway.shapes.message import CountedTokens


def _read(card: ModelCard, body: dict[str, Any]) -> Asked:
    check_is_text(card)
    admitted = input_schema(card, "message_tokens").coerce_and_validate(body)
    task = message_request(admitted, default_max_tokens=1, context_window=card.context_window)
    return Asked(structs.replace(task, only_counts=True), False, lambda _call: CountedTokens())


MESSAGE_TOKENS = Door(is_openai=True, read=_read, schemas=("anthropic_message_tokens",))
