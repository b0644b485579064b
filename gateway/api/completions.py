"""`POST A/ai/v1/completions`: a text is continued as it is, without a chat template, for OpenAI clients."""

from __future__ import annotations

from typing import Any

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol import openai
from engine.protocol.completions import completions
from engine.protocol.fields import BadInput, boolean
from gateway.api.text_models import check_is_text
from gateway.call import Asked, Call, Door
from gateway.completion_shape import CompletionText


def read_completion(card: ModelCard, body: dict[str, Any], *, is_bare: bool) -> Asked:
    """A text completion body, for this door and for models that take it natively."""
    admitted = input_schema(card, "completions").coerce_and_validate(body)
    asked = completions(admitted, context_window=card.context_window, vocab_size=0)
    if asked.num_tries != asked.num_choices:
        raise BadInput("'/best_of' must be '/n'")
    (task,) = asked.tasks()
    has_usage_chunk = openai.wants_usage_chunk(admitted)
    echo = str(asked.prompts[0]) if asked.has_echo else ""

    def make_shape(call: Call) -> CompletionText:
        return CompletionText(
            call.request_id,
            int(call.started_at.timestamp()),
            call.shown_model,
            echo=echo,
            num_choices=asked.num_choices,
            has_usage_chunk=has_usage_chunk,
            has_logprobs=task.sampling.logprobs is not None,
            is_bare=is_bare,
        )

    return Asked(task, boolean(admitted, "stream", False), make_shape, lora=admitted.get("lora"))


def _read(card: ModelCard, body: dict[str, Any]) -> Asked:
    check_is_text(card)
    return read_completion(card, body, is_bare=True)


COMPLETIONS = Door(is_openai=True, read=_read, schemas=("openai_completions",))
