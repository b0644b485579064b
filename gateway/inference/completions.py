"""`POST A/ai/v1/completions`: OpenAI's text completions, which continue texts without a chat template.

A body has one prompt or a list of prompts, each a text or token ids; each prompt becomes a call of its own.
"""

from __future__ import annotations

from typing import Any

from catalog.card import ModelCard
from catalog.schemas import input_schema
from engine.protocol.api_format import ApiFormat
from engine.protocol.chat_completions import includes_usage
from engine.protocol.completions import CompletionRenderer, read_completion_request
from engine.protocol.fields import BadInput, boolean
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.vllm_fields import reject_unsupported
from gateway.call import Call, Endpoint, ParsedRequest
from gateway.model_names import require_task

MAX_PROMPTS = 128
_ANY_TOKEN_ID = 1 << 31  # the node checks ids against the model's vocabulary


def parse_completion(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    """Parse a text completion body. Also used for models that accept one natively."""
    reject_unsupported(body, "completions")
    accepted = input_schema(card, "openai_completions").coerce_and_validate(body)
    request = read_completion_request(accepted, context_window=card.context_window, vocab_size=_ANY_TOKEN_ID)
    if len(request.prompts) > MAX_PROMPTS:
        raise BadInput(f"'/prompt' must have <= {MAX_PROMPTS} items")
    first, *others = request.tasks()
    has_usage_chunk = includes_usage(accepted)

    def make_renderer(call: Call) -> CompletionRenderer:
        return CompletionRenderer(
            f"cmpl-{call.request_id}",
            int(call.started_at.timestamp()),
            call.requested_model,
            request,
            has_usage_chunk=has_usage_chunk,
        )

    is_stream = boolean(accepted, "stream", False)
    return ParsedRequest(first, is_stream, make_renderer, lora=accepted.get("lora"), more_tasks=tuple(others))


def _parse(card: ModelCard, body: dict[str, Any]) -> ParsedRequest:
    require_task(card, TextGeneration)
    return parse_completion(card, body)


COMPLETIONS = Endpoint(
    ApiFormat.OPENAI, "Continue texts without a chat template.", _parse, schemas=("openai_completions",)
)
