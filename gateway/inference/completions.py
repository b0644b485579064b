"""`POST A/ai/v1/completions`: texts are continued as they are, without a chat template, for OpenAI clients.

A body has one prompt or a list of them, each a text or token ids; each prompt is a call of its own.
"""

from __future__ import annotations

from typing import Any

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol import openai
from engine.protocol.completions import Completions, completions
from engine.protocol.fields import BadInput, boolean
from engine.protocol.vllm_fields import refuse_unsupported
from gateway.call import Asked, Call, Door
from gateway.inference.text_models import check_is_text
from gateway.shapes.completion import CompletionText

MAX_PROMPTS = 128
_ANY_TOKEN_ID = 1 << 31  # which ids a model has, its node knows


def read_completion(card: ModelCard, body: dict[str, Any], *, is_bare: bool) -> Asked:
    """A text completion body, for this door and for models that take it natively."""
    refuse_unsupported(body, "completions")
    admitted = input_schema(card, "completions").coerce_and_validate(body)
    asked = completions(admitted, context_window=card.context_window, vocab_size=_ANY_TOKEN_ID)
    if len(asked.prompts) > MAX_PROMPTS:
        raise BadInput(f"'/prompt' must have <= {MAX_PROMPTS} items")
    first, *others = asked.tasks()
    has_usage_chunk = openai.wants_usage_chunk(admitted)
    echoes = _echoes(asked)

    def make_shape(call: Call) -> CompletionText:
        return CompletionText(
            call.request_id,
            int(call.started_at.timestamp()),
            call.shown_model,
            asked,
            echoes=echoes,
            has_usage_chunk=has_usage_chunk,
            is_bare=is_bare,
        )

    is_stream = boolean(admitted, "stream", False)
    return Asked(first, is_stream, make_shape, lora=admitted.get("lora"), others=tuple(others))


def _echoes(asked: Completions) -> list[str]:
    """What the choices of each prompt begin with, beside what its task tells."""
    if not asked.has_echo or asked.tasks_echo:
        return [""] * len(asked.prompts)
    return [str(prompt) for prompt in asked.prompts]


def _read(card: ModelCard, body: dict[str, Any]) -> Asked:
    check_is_text(card)
    return read_completion(card, body, is_bare=True)


COMPLETIONS = Door(is_openai=True, read=_read, schemas=("openai_completions",))
