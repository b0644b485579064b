"""Request fields beyond OpenAI's that programs written for vLLM send: each is supported or rejected by name.

Supported fields are read where related fields are read (`sampling`, `output_format`). This module is the table of
fields that would change the output and are not supported. Readers call `reject_unsupported` on the body as the client
sent it, before unknown fields are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from engine.protocol.fields import BadInput

Route = Literal["chat", "completions", "responses", "tokenize"]

# Accepted because they cannot change the output: which library checks a format, an id for logs, and spacing between
# control tokens, which responses never contain.
IGNORED = ("guided_decoding_backend", "request_id", "spaces_between_special_tokens")

_UNSUPPORTED = "is not supported"
_FORMATS = "'/response_format', '/guided_grammar', '/guided_regex' or '/guided_json'"
_FORMAT_FIELDS = (
    "guided_choice", "guided_grammar", "guided_json", "guided_regex", "response_format", "structured_outputs"
)  # fmt: skip
# field -> (values without effect besides null, false and empty ones, the reason or the alternative)
_REJECTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "allowed_token_ids": ((), f"{_UNSUPPORTED}: use '/logit_bias' or a format"),
    "audio": ((), f"{_UNSUPPORTED}: output is text"),
    "bad_words": ((), _UNSUPPORTED),
    "cache_salt": ((), f"{_UNSUPPORTED}: accounts share no cache, and callers of one account do"),
    "continue_final_message": ((), f"{_UNSUPPORTED}: use /v1/completions to continue a text"),
    "custom_logit_processor": ((), "is not accepted from a caller"),
    "documents": ((), _UNSUPPORTED),
    "dry_multiplier": ((0,), _UNSUPPORTED),
    "ebnf": ((), f"{_UNSUPPORTED}: use {_FORMATS}"),
    "epsilon_cutoff": ((0,), _UNSUPPORTED),
    "eta_cutoff": ((0,), _UNSUPPORTED),
    "grammar": ((), f"{_UNSUPPORTED}: use {_FORMATS}"),
    "guided_whitespace_pattern": ((), f"{_UNSUPPORTED}: at most one space stands where JSON allows white space"),
    "include_stop_str_in_output": ((), f"{_UNSUPPORTED}: responses end before a stop string"),
    "json_schema": ((), f"{_UNSUPPORTED}: use {_FORMATS}"),
    "kv_transfer_params": ((), "is not accepted from a caller"),
    "length_penalty": ((1,), f"{_UNSUPPORTED}: there is no beam search"),
    "logits_processors": ((), "is not accepted from a caller"),
    "lora_path": ((), f"{_UNSUPPORTED}: use '/lora'"),
    "media_io_kwargs": ((), _UNSUPPORTED),
    "mirostat": ((0,), _UNSUPPORTED),
    "mm_processor_kwargs": ((), _UNSUPPORTED),
    "modalities": ((["text"],), f"{_UNSUPPORTED}: output is text"),
    "no_repeat_ngram_size": ((0,), _UNSUPPORTED),
    "priority": ((0,), f"{_UNSUPPORTED}: accounts take turns"),
    "prompt_logprobs": ((), f"{_UNSUPPORTED}: ask /v1/completions for '/echo' and '/logprobs'"),
    "regex": ((), f"{_UNSUPPORTED}: use {_FORMATS}"),
    "return_token_ids": ((), _UNSUPPORTED),
    "return_tokens_as_token_ids": ((), _UNSUPPORTED),
    "stop_regex": ((), f"{_UNSUPPORTED}: use '/stop'"),
    "structural_tag": ((), _UNSUPPORTED),
    "suffix": ((), f"{_UNSUPPORTED}: these models continue a text and do not fill in"),
    "tfs_z": ((1,), _UNSUPPORTED),
    "thinking_token_budget": ((), f"{_UNSUPPORTED}: use '/reasoning_effort'"),
    "top_a": ((0,), _UNSUPPORTED),
    "truncate_prompt_tokens": ((), f"{_UNSUPPORTED}: shorten the prompt"),
    "typical_p": ((1,), _UNSUPPORTED),
    "use_beam_search": ((), _UNSUPPORTED),
    "vllm_xargs": ((), "is not accepted from a caller"),
    "web_search_options": ((), _UNSUPPORTED),
    "xtc_probability": ((0,), _UNSUPPORTED),
}
_REJECTED_BY_ROUTE: dict[Route, dict[str, tuple[tuple[Any, ...], str]]] = {
    "chat": {
        "add_special_tokens": ((), f"{_UNSUPPORTED}: the chat template writes them"),
        "best_of": ((1,), f"{_UNSUPPORTED} for a conversation: use '/n'"),
        "echo": ((), f"{_UNSUPPORTED} for a conversation"),
    },
    "completions": {},
    "responses": dict.fromkeys(_FORMAT_FIELDS, ((), f"{_UNSUPPORTED} here: use '/text/format'")),
    "tokenize": {},
}
_MUST_BE_TRUE: dict[Route, tuple[str, ...]] = {
    "chat": ("add_generation_prompt", "include_reasoning", "separate_reasoning", "skip_special_tokens"),
    "completions": ("add_generation_prompt", "add_special_tokens", "skip_special_tokens"),
    "responses": ("add_generation_prompt", "include_reasoning", "skip_special_tokens"),
    "tokenize": ("add_generation_prompt",),
}
_WHY_TRUE = {"add_special_tokens": ": send token ids to choose every token"}
_NO_EFFECT: tuple[Any, ...] = (None, False, "false", "", [], {})
CHECKED_FIELDS: dict[Route, frozenset[str]] = {
    route: frozenset({*_REJECTED, *_REJECTED_BY_ROUTE[route], *_MUST_BE_TRUE[route]}) for route in _REJECTED_BY_ROUTE
}


def reject_unsupported(body: Mapping[str, Any], route: Route) -> None:
    """Raise BadInput if a field of `body` requests something that is not supported."""
    for name in sorted(CHECKED_FIELDS[route] & body.keys()):
        value = body[name]
        if name in _MUST_BE_TRUE[route]:
            if value not in (None, True, "true"):
                raise BadInput(f"'/{name}' must be true{_WHY_TRUE.get(name, '')}")
            continue
        neutral, why = _REJECTED_BY_ROUTE[route].get(name) or _REJECTED[name]
        is_zero = value == 0 and not isinstance(value, bool)  # equals False, but a number may have an effect
        if value not in neutral and (is_zero or value not in _NO_EFFECT):
            raise BadInput(f"'/{name}' {why}")
