"""`POST A/ai/v1/responses/input_tokens`: how many tokens the input of such a response has, at no cost.

The model's own tokenizer and template count, tools and the turns of an earlier response included; nothing is generated
or kept.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec import structs

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.responses import response_request
from gateway.call import Asked, Door
from gateway.inference.text_models import check_is_text
from gateway.shapes.response import CountedInput


def _read(card: ModelCard, body: dict[str, Any]) -> Asked:
    check_is_text(card)
    admitted = input_schema(card, "response_tokens").coerce_and_validate(body)
    request = response_request(admitted, default_max_tokens=1, context_window=card.context_window)
    task = structs.replace(request.task, only_counts=True)
    request = dataclasses.replace(request, task=task, is_stored=False)
    return Asked(task, False, lambda _call: CountedInput(), request)


RESPONSE_TOKENS = Door(is_openai=True, read=_read, schemas=("openai_response_tokens",))
