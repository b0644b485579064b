"""Fields beyond OpenAI's that programs written for vLLM and its like send: done, or refused by name, never passed over.

What is done is read where its like is (`openai.sampling`, `output_format`), but for `min_tokens`, which is here. This
is the table of what would change an answer and is not done: the gateway's routes and the engine alone ask it, before
anything leaves out what it does not know. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from engine.protocol.fields import BadInput, integer
from engine.protocol.tasks import Sampling

Route = Literal["chat", "completions", "responses", "tokenize"]

TAKEN = ("guided_decoding_backend", "request_id", "spaces_between_special_tokens")
"""What may be asked and changes no answer: who checks a format, an id for logs, spaces between control tokens, which
are never shown."""

_NOT_DONE = "is not supported"
_FORMATS = "'/response_format', '/guided_grammar', '/guided_regex' or '/guided_json'"
_FORMAT_FIELDS = (
    "guided_choice", "guided_grammar", "guided_json", "guided_regex", "response_format", "structured_outputs"
)  # fmt: skip
# field -> values that ask for nothing, beside null, false and empty ones; why not, or what to do instead
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "allowed_token_ids": ((), f"{_NOT_DONE}: use '/logit_bias' or a format"),
    "audio": ((), f"{_NOT_DONE}: answers are text"),
    "bad_words": ((), _NOT_DONE),
    "cache_salt": ((), f"{_NOT_DONE}: accounts share no cache, and callers of one account do"),
    "continue_final_message": ((), f"{_NOT_DONE}: use /v1/completions to continue a text"),
    "custom_logit_processor": ((), "is not accepted from a caller"),
    "documents": ((), _NOT_DONE),
    "dry_multiplier": ((0,), _NOT_DONE),
    "ebnf": ((), f"{_NOT_DONE}: use {_FORMATS}"),
    "epsilon_cutoff": ((0,), _NOT_DONE),
    "eta_cutoff": ((0,), _NOT_DONE),
    "grammar": ((), f"{_NOT_DONE}: use {_FORMATS}"),
    "guided_whitespace_pattern": ((), f"{_NOT_DONE}: at most one space stands where JSON allows white space"),
    "include_stop_str_in_output": ((), f"{_NOT_DONE}: the answer ends before a stop string"),
    "json_schema": ((), f"{_NOT_DONE}: use {_FORMATS}"),
    "kv_transfer_params": ((), "is not accepted from a caller"),
    "length_penalty": ((1,), f"{_NOT_DONE}: there is no beam search"),
    "logits_processors": ((), "is not accepted from a caller"),
    "lora_path": ((), f"{_NOT_DONE}: use '/lora'"),
    "media_io_kwargs": ((), _NOT_DONE),
    "mirostat": ((0,), _NOT_DONE),
    "mm_processor_kwargs": ((), _NOT_DONE),
    "modalities": ((["text"],), f"{_NOT_DONE}: answers are text"),
    "no_repeat_ngram_size": ((0,), _NOT_DONE),
    "priority": ((0,), f"{_NOT_DONE}: accounts take turns"),
    "prompt_logprobs": ((), f"{_NOT_DONE}: ask /v1/completions for '/echo' and '/logprobs'"),
    "regex": ((), f"{_NOT_DONE}: use {_FORMATS}"),
    "return_token_ids": ((), _NOT_DONE),
    "return_tokens_as_token_ids": ((), _NOT_DONE),
    "stop_regex": ((), f"{_NOT_DONE}: use '/stop'"),
    "structural_tag": ((), _NOT_DONE),
    "suffix": ((), f"{_NOT_DONE}: these models continue a text and do not fill in"),
    "tfs_z": ((1,), _NOT_DONE),
    "thinking_token_budget": ((), f"{_NOT_DONE}: use '/reasoning_effort'"),
    "top_a": ((0,), _NOT_DONE),
    "truncate_prompt_tokens": ((), f"{_NOT_DONE}: shorten the prompt"),
    "typical_p": ((1,), _NOT_DONE),
    "use_beam_search": ((), _NOT_DONE),
    "vllm_xargs": ((), "is not accepted from a caller"),
    "web_search_options": ((), _NOT_DONE),
    "xtc_probability": ((0,), _NOT_DONE),
}
_OF_ROUTE: dict[Route, dict[str, tuple[tuple[Any, ...], str]]] = {
    "chat": {
        "add_special_tokens": ((), f"{_NOT_DONE}: the chat template writes them"),
        "best_of": ((1,), f"{_NOT_DONE} for a conversation: use '/n'"),
        "echo": ((), f"{_NOT_DONE} for a conversation"),
    },
    "completions": {},
    "responses": dict.fromkeys(_FORMAT_FIELDS, ((), f"{_NOT_DONE} here: use '/text/format'")),
    "tokenize": {},
}
_MUST_BE_TRUE: dict[Route, tuple[str, ...]] = {
    "chat": ("add_generation_prompt", "include_reasoning", "separate_reasoning", "skip_special_tokens"),
    "completions": ("add_generation_prompt", "add_special_tokens", "skip_special_tokens"),
    "responses": ("add_generation_prompt", "include_reasoning", "skip_special_tokens"),
    "tokenize": ("add_generation_prompt",),
}
_WHY_TRUE = {"add_special_tokens": ": send token ids to choose every token"}
_NOTHING: tuple[Any, ...] = (None, False, "false", "", [], {})
REFUSED_OF: dict[Route, frozenset[str]] = {
    route: frozenset({*_REFUSED, *_OF_ROUTE[route], *_MUST_BE_TRUE[route]}) for route in _OF_ROUTE
}
"""What a body of each route is searched for."""


def refuse_unsupported(body: Mapping[str, Any], route: Route) -> None:
    """`body` as its client sent it. Raises BadInput for a field that asks for what cannot be done."""
    for name in sorted(REFUSED_OF[route] & body.keys()):
        value = body[name]
        if name in _MUST_BE_TRUE[route]:
            if value not in (None, True, "true"):
                raise BadInput(f"'/{name}' must be true{_WHY_TRUE.get(name, '')}")
            continue
        neutral, why = _OF_ROUTE[route].get(name) or _REFUSED[name]
        is_zero = value == 0 and not isinstance(value, bool)  # equal to false, and not the same
        if value not in neutral and (is_zero or value not in _NOTHING):
            raise BadInput(f"'/{name}' {why}")


def with_min_tokens(body: Mapping[str, Any], sampling: Sampling, *, is_held: bool) -> Sampling:
    """`sampling` with `min_tokens`, which end tokens and `stop_token_ids` wait for. Refused for a text that may end
    otherwise: at a stop string, or, where it `is_held`, by a format or a call. Raises BadInput."""
    min_tokens = integer(body, "min_tokens", 0, minimum=0, maximum=sampling.max_tokens)
    if min_tokens and (is_held or sampling.stop):
        raise BadInput("'/min_tokens' cannot be combined with '/stop', an output format or tools")
    return msgspec.structs.replace(sampling, min_tokens=min_tokens)
