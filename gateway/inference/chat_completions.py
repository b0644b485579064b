"""`POST A/ai/v1/chat/completions`: text generation for OpenAI clients, bare objects."""

from __future__ import annotations

from typing import Any

from catalog.card import ModelCard
from catalog.schemas import RequestFormat
from gateway.call import Asked, Call, Door
from gateway.errors import Reason, Refusal
from gateway.shapes.chat import ChatText
from gateway.shapes.chat_options import chat_reader


def read_chat(card: ModelCard, body: dict[str, Any], *, face: RequestFormat, is_bare: bool) -> Asked:
    """A chat body, for this door and for models whose native shape it is."""
    task, options = chat_reader(card, face).read(body)

    def make_shape(call: Call) -> ChatText:
        return ChatText(
            call.request_id,
            int(call.started_at.timestamp()),
            call.shown_model,
            has_usage_chunk=options.has_usage_chunk,
            has_logprobs=task.sampling.logprobs is not None,
            is_bare=is_bare,
            is_legacy=options.is_legacy,
            num_choices=task.num_choices,
        )

    return Asked(task, options.is_stream, make_shape, lora=options.lora)


def _read(card: ModelCard, body: dict[str, Any]) -> Asked:
    if card.task_slug != "text-generation":
        raise Refusal(Reason.MODEL_UNKNOWN, card.name)
    return read_chat(card, body, face="openai", is_bare=True)


CHAT_COMPLETIONS = Door(is_openai=True, read=_read, schemas=("openai_chat",))
