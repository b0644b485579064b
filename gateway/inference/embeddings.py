"""`POST A/ai/v1/embeddings`: text embeddings for OpenAI clients, as floats or base64."""

from __future__ import annotations

from typing import Any

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol import openai
from gateway.call import Asked, Door
from gateway.errors import Reason, Refusal
from gateway.shapes.embeddings import OpenAIEmbeddings


def _read(card: ModelCard, body: dict[str, Any]) -> Asked:
    if card.task_slug != "text-embeddings":
        raise Refusal(Reason.MODEL_UNKNOWN, card.name)
    admitted = input_schema(card, "openai").coerce_and_validate(body)
    task, encoding = openai.text_embeddings(admitted)
    return Asked(task, False, lambda call: OpenAIEmbeddings(call.shown_model, encoding))


EMBEDDINGS = Door(is_openai=True, read=_read, schemas=("openai_embeddings",))
