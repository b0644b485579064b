"""Fields that programs written for vLLM send are supported or rejected by name, by every route."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from catalog.errors import SchemaViolation
from engine.protocol.completions import read_completion_request
from engine.protocol.fields import BadInput
from engine.protocol.output_format import Constraint
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.vllm_fields import CHECKED_FIELDS, IGNORED
from engine.standalone.app import read_chat
from gateway.inference.chat_completions import parse_chat
from gateway.inference.completions import parse_completion
from gateway.inference.responses import parse_response
from tests.gateway.process import cards

CHATTY = next(card for card in cards() if card.name == "@cf/test/chatty")
CARD = structs.replace(CHATTY, capabilities=CHATTY.capabilities | {"json_mode"})
MESSAGES = [{"role": "user", "content": "Hi"}]
ROUTES: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], TextGeneration]]] = {
    "gateway chat": ({"messages": MESSAGES}, lambda body: parse_chat(CARD, body).task),
    "gateway completions": ({"prompt": "Hi"}, lambda body: parse_completion(CARD, body).task),  # type: ignore[dict-item]
    "gateway responses": ({"input": "Hi"}, lambda body: parse_response(CARD, body).task),  # type: ignore[dict-item]
    "engine chat": ({"messages": MESSAGES}, lambda body: read_chat(body, context_window=2048)),
    "engine completions": (
        {"prompt": "Hi"},
        lambda body: read_completion_request(body, context_window=2048, vocab_size=100).tasks()[0],
    ),
}
FORMATS: dict[str, Any] = {
    "guided_json": ({"type": "object"}, "json_schema"),
    "guided_regex": ("a+", "regex"),
    "guided_choice": (["a"], "choice"),
    "guided_grammar": ("root ::= [a]", "grammar"),
    "structured_outputs": ({"regex": "a+"}, "regex"),
    "response_format": ({"type": "json_object"}, "json_object"),
}
# field -> value in the request, expected sampling parameters
DONE: list[tuple[str, Any, dict[str, Any]]] = [
    ("top_k", 7, {"top_k": 7}),
    ("top_k", 0, {"top_k": 0}),
    ("top_k", -1, {"top_k": 0}),
    ("min_p", 0.1, {"min_p": 0.1}),
    ("repetition_penalty", 1.1, {"repetition_penalty": 1.1}),
    ("frequency_penalty", 0.5, {"frequency_penalty": 0.5}),
    ("presence_penalty", 0.5, {"presence_penalty": 0.5}),
    ("min_tokens", 3, {"min_tokens": 3}),
    ("ignore_eos", True, {"ignore_eos": True}),
    ("stop_token_ids", [5], {"stop_token_ids": (5,)}),
    ("stop", "x", {"stop": ("x",)}),
    ("logit_bias", {"5": 1}, {"logit_bias": ((5, 1.0),)}),
]
# field -> what cannot be done, and what asks for nothing
REFUSED: list[tuple[str, Any, list[Any]]] = [
    ("allowed_token_ids", [1], [[]]),
    ("audio", {"voice": "x"}, []),
    ("bad_words", ["x"], [[]]),
    ("cache_salt", "x", []),
    ("continue_final_message", True, []),
    ("custom_logit_processor", "x", []),
    ("documents", [{}], []),
    ("dry_multiplier", 0.8, [0]),
    ("ebnf", "x", []),
    ("epsilon_cutoff", 0.1, [0]),
    ("eta_cutoff", 0.1, [0]),
    ("grammar", "x", [""]),
    ("guided_whitespace_pattern", " *", []),
    ("include_stop_str_in_output", True, [False]),
    ("json_schema", {"type": "object"}, [{}]),
    ("kv_transfer_params", {"a": 1}, [{}]),
    ("length_penalty", 0.5, [1, 1.0]),
    ("logits_processors", ["x"], [[]]),
    ("lora_path", "x", []),
    ("media_io_kwargs", {"a": 1}, [{}]),
    ("mirostat", 1, [0]),
    ("mm_processor_kwargs", {"a": 1}, [{}]),
    ("modalities", ["text", "audio"], [["text"]]),
    ("no_repeat_ngram_size", 2, [0]),
    ("priority", 1, [0]),
    ("prompt_logprobs", 0, []),
    ("regex", "a", []),
    ("return_token_ids", True, [False]),
    ("return_tokens_as_token_ids", True, [False]),
    ("skip_special_tokens", False, [True]),
    ("stop_regex", "a", []),
    ("structural_tag", "x", []),
    ("suffix", "x", []),
    ("tfs_z", 0.5, [1]),
    ("thinking_token_budget", 5, []),
    ("top_a", 0.1, [0]),
    ("truncate_prompt_tokens", 5, []),
    ("typical_p", 0.5, [1]),
    ("use_beam_search", True, [False]),
    ("vllm_xargs", {"a": 1}, [{}]),
    ("web_search_options", {"a": 1}, []),
    ("xtc_probability", 0.5, [0]),
    ("add_generation_prompt", False, []),
]
OF_CHAT: list[tuple[str, Any, list[Any]]] = [
    ("add_special_tokens", True, [False]),
    ("best_of", 2, [1]),
    ("echo", True, [False]),
    ("include_reasoning", False, [True]),
    ("separate_reasoning", False, [True]),
]


@pytest.fixture(params=ROUTES)
def read(request: pytest.FixtureRequest) -> Callable[..., TextGeneration]:
    request_body, reader = ROUTES[request.param]
    return lambda **fields: reader({**request_body, **fields})


def refusal(read: Callable[..., TextGeneration], **fields: Any) -> str:
    with pytest.raises((BadInput, SchemaViolation)) as refused:
        read(**fields)
    return str(refused.value)


def test_supported_vllm_fields_take_effect(read: Callable[..., TextGeneration]) -> None:
    plain = read().sampling
    for field, value, expected in DONE:
        sampling = read(**{field: value}).sampling
        changed = {
            name: getattr(sampling, name)
            for name in plain.__struct_fields__
            if name not in ("has_explicit_max_tokens",)
        }
        assert changed == {name: getattr(plain, name) for name in changed} | expected, field
    for field in IGNORED:
        assert read(**{field: "x"}) == read()


def test_unsupported_vllm_fields_are_rejected_by_name_unless_without_effect(
    read: Callable[..., TextGeneration],
) -> None:
    for field, value, nothing in REFUSED:
        assert f"'/{field}'" in refusal(read, **{field: value}), field
        for neutral in (None, *nothing):
            assert read(**{field: neutral}) == read(), field
    assert "'/top_k'" in refusal(read, top_k=-2)


@pytest.mark.parametrize("route", ["gateway chat", "engine chat"])
def test_fields_unsupported_in_chat_are_rejected_by_name(route: str) -> None:
    request, reader = ROUTES[route]
    for field, value, nothing in OF_CHAT:
        assert f"'/{field}'" in refusal(reader, body=request | {field: value}), field
        for neutral in (None, *nothing):
            assert reader(request | {field: neutral}) == reader(request), field


@pytest.mark.parametrize("route", ROUTES)
def test_formats_are_supported_or_rejected_with_the_right_name(route: str) -> None:
    request, reader = ROUTES[route]
    for field, (value, kind) in FORMATS.items():
        if route == "gateway responses":
            assert "use '/text/format'" in refusal(reader, body=request | {field: value})
            continue
        constraint = reader(request | {field: value}).constraint
        assert isinstance(constraint, Constraint), field
        assert constraint.kind == kind
    if route != "gateway responses":
        for option in ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties"):
            outputs = {"regex": "a", "disable_fallback": True}
            assert reader(request | {"structured_outputs": outputs | {option: None}}).constraint is not None
            result = refusal(reader, body=request | {"structured_outputs": outputs | {option: True}})
            assert result == f"'/structured_outputs/{option}' is not supported"


def test_every_unsupported_field_is_tested_and_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/api.md").read_text()
    refused = CHECKED_FIELDS["chat"] | CHECKED_FIELDS["completions"]
    assert refused == {field for field, *_ in (*REFUSED, *OF_CHAT)}
    assert CHECKED_FIELDS["responses"] - refused <= FORMATS.keys()
    for field in (*refused, *IGNORED, *FORMATS, *(field for field, *_ in DONE)):
        assert f"`{field}`" in page, field
