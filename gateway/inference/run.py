"""`POST A/ai/run/{model}`: any model, its own shape, in the platform's envelope. With `requests` it takes a batch of
them, to be run later if the query says `queueRequest=true`; `request_id` asks how such a batch stands.
"""

from __future__ import annotations

from typing import Any

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.fields import boolean
from gateway.call import Asked, Door
from gateway.errors import Reason, Refusal
from gateway.inference.chat_completions import read_chat
from gateway.inference.completions import read_completion
from gateway.inference.responses import read_response
from gateway.shapes import native_bodies
from gateway.shapes.embeddings import NativeEmbeddings
from gateway.shapes.native import NativeText


def _read(card: ModelCard, body: dict[str, Any]) -> Asked:
    if card.schema == "text_generation_responses":
        return _read_by_key(card, body)
    if card.native_shape == "chat_completion":
        return read_chat(card, body, face="native", is_bare=False)
    admitted = input_schema(card).coerce_and_validate(body)
    if card.task_slug == "text-generation":
        task = native_bodies.text_generation(
            admitted, default_max_tokens=card.default_max_tokens, context_window=card.context_window
        )
        is_json = task.constraint is not None and task.constraint.kind in ("json_schema", "json_object")
        has_tools = bool(task.tools)
        return Asked(
            task,
            boolean(admitted, "stream", False),
            lambda _call: NativeText(has_tools=has_tools, is_json=is_json),
            lora=admitted.get("lora"),
        )
    if card.task_slug == "text-embeddings":
        return Asked(native_bodies.text_embeddings(admitted), False, lambda _call: NativeEmbeddings())
    raise Refusal(Reason.MODEL_UNKNOWN, card.name)


def _read_by_key(card: ModelCard, body: dict[str, Any]) -> Asked:
    """Of a model with three faces, the one whose key is present."""
    if body.get("input") is not None:
        return read_response(card, body, is_bare=False)
    if body.get("messages") is None and body.get("prompt") is not None:
        return read_completion(card, body, is_bare=False)
    return read_chat(card, body, face="openai", is_bare=False)


RUN = Door(is_openai=False, read=_read, takes_batches=True)
