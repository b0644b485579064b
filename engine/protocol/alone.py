"""Fields that only the engine alone takes, for programs written for vLLM: read into `Sampling`, or refused by name.

What would change the answer and cannot be done here is refused; any other unknown field is left alone. Pure; chat and
text completions share these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.protocol.fields import BadInput, boolean, integer
from engine.protocol.tasks import Sampling

MAX_CHOICES = 128

# field -> why not, or what to do instead
_REFUSED = {
    "allowed_token_ids": "is not supported",
    "bad_words": "is not supported",
    "continue_final_message": "is not supported: use /v1/completions to continue a text",
    "documents": "is not supported",
    "logits_processors": "is not accepted from a caller",
    "return_token_ids": "is not supported",
    "return_tokens_as_token_ids": "is not supported",
    "suffix": "is not supported: these models continue a text and do not fill in",
    "truncate_prompt_tokens": "is not supported: shorten the prompt",
    "use_beam_search": "is not supported",
}


def with_defaults(body: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with the model's own sampling where it says nothing, and vLLM's spelling of "no top_k" in ours."""
    filled = {**defaults, **{name: value for name, value in body.items() if value is not None}}
    if filled.get("top_k") == -1:
        filled["top_k"] = 0
    return filled


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Raises BadInput for a field that asks for what cannot be done."""
    for name, why in _REFUSED.items():
        if not _is_nothing(body.get(name)):
            raise BadInput(f"'/{name}' {why}")
    if body.get("prompt_logprobs") is not None:
        raise BadInput("'/prompt_logprobs' is not supported: ask /v1/completions for '/echo' and '/logprobs'")
    if not boolean(body, "add_generation_prompt", True):
        raise BadInput("'/add_generation_prompt' must be true")


def _is_nothing(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def with_min_tokens(body: Mapping[str, Any], sampling: Sampling, *, is_held: bool) -> Sampling:
    """`sampling` with `min_tokens`, which end tokens and `stop_token_ids` wait for. Refused for a text that may end
    otherwise: at a stop string, or, where it `is_held`, by a format or a call. Raises BadInput."""
    min_tokens = integer(body, "min_tokens", 0, minimum=0, maximum=sampling.max_tokens)
    if min_tokens and (is_held or sampling.stop):
        raise BadInput("'/min_tokens' cannot be combined with '/stop', an output format or tools")
    return msgspec.structs.replace(sampling, min_tokens=min_tokens)


def num_choices(body: Mapping[str, Any]) -> int:
    """How many answers a prompt is to have. Raises BadInput."""
    count: int = integer(body, "n", 1, minimum=1, maximum=MAX_CHOICES)
    return count
