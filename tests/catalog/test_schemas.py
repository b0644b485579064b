"""catalog/schemas.py: conversion and validation of request bodies, and the contract's error messages."""

from __future__ import annotations

import json
import time
import timeit
from functools import partial
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.card import CAPABILITIES, ModelCard
from catalog.errors import SchemaViolation
from catalog.schemas import input_schema, schema_document
from tests.catalog.cards import chat_card, embedder_card

USER = {"role": "user", "content": "hello"}
CHAT = chat_card()
ABLE = chat_card("@cf/acme/able", capabilities=sorted(CAPABILITIES))
EMBEDDER = embedder_card()
NEITHER = (
    "oneOf at '/' not met, 0 matches: "
    "required properties at '/' are 'prompt', required properties at '/' are 'messages'"
)


def admit(body: dict[str, Any], card: ModelCard = CHAT, name: str = "") -> dict[str, Any]:
    return input_schema(card, name).coerce_and_validate(body)


def refusal(body: dict[str, Any], card: ModelCard = CHAT, name: str = "") -> SchemaViolation:
    with pytest.raises(SchemaViolation) as refused:
        admit(body, card, name)
    return refused.value


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, NEITHER),
        ({"requests": []}, NEITHER),
        ({"prompt": 3}, "Type mismatch of '/prompt', 'integer' not in 'string'"),
        ({"prompt": None}, "Type mismatch of '/prompt', 'null' not in 'string'"),
        ({"prompt": ["x"]}, "Type mismatch of '/prompt', 'array' not in 'string'"),
        ({"prompt": ""}, "'/prompt' must have >= 1 characters"),
        ({"messages": []}, "'/messages' must have >= 1 items"),
        ({"messages": None}, "Type mismatch of '/messages', 'null' not in 'array'"),
        ({"messages": "hello"}, "Type mismatch of '/messages', 'string' not in 'array'"),
        ({"messages": ["hello"]}, "Type mismatch of '/messages/0', 'string' not in 'object'"),
        ({"messages": [USER] * 1001}, "'/messages' must have <= 1000 items"),
        ({"messages": [{"content": "x"}]}, "required properties at '/messages/0' are 'role'"),
        ({"messages": [USER, {"role": "user"}]}, "required properties at '/messages/1' are 'content'"),
        (
            {"messages": [{"role": "wizard", "content": "x"}]},
            "'/messages/0/role' must be one of 'system', 'user', 'assistant', 'tool'",
        ),
        (
            {"messages": [{"role": "user", "content": None}]},
            "Type mismatch of '/messages/0/content', 'null' not in 'string', 'array'",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "Type mismatch of '/messages/0/content', 'integer' not in 'string', 'array'",
        ),
        ({"messages": [{"role": "user", "content": []}]}, "'/messages/0/content' must have >= 1 items"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 65}]},
            "'/messages/0/content' must have <= 64 items",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "required properties at '/messages/0/content/0' are 'text'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]},
            "Type mismatch of '/messages/0/content/0/text', 'null' not in 'string'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
            "'/messages/0/content/0/type' must be one of 'text'",
        ),
        ({"prompt": "x", "top_k": 51}, "'/top_k' must be <= 50"),
        ({"prompt": "x", "top_k": 0}, "'/top_k' must be >= 1"),
        ({"prompt": "x", "top_p": 0}, "'/top_p' must be >= 0.001"),
        ({"prompt": "x", "temperature": 5.1}, "'/temperature' must be <= 5"),
        ({"prompt": "x", "temperature": -0.1}, "'/temperature' must be >= 0"),
        ({"prompt": "x", "seed": 0}, "'/seed' must be >= 1"),
        ({"prompt": "x", "seed": 10**10}, "'/seed' must be <= 9999999999"),
        ({"prompt": "x", "repetition_penalty": 2.5}, "'/repetition_penalty' must be <= 2"),
        ({"prompt": "x", "presence_penalty": -3}, "'/presence_penalty' must be >= -2"),
        ({"prompt": "x", "stream": 1}, "Type mismatch of '/stream', 'integer' not in 'boolean'"),
        ({"prompt": "x", "stream": "yes"}, "Type mismatch of '/stream', 'string' not in 'boolean'"),
        ({"prompt": "x", "raw": []}, "Type mismatch of '/raw', 'array' not in 'boolean'"),
    ],
)
def test_invalid_body_is_rejected_naming_the_field(body: dict[str, Any], message: str) -> None:
    refused = refusal(body)
    assert (refused.message, refused.code) == (message, 5006)


@pytest.mark.parametrize(
    "value",
    [0, -1, 1.5, "1.5", True, "true", "many", "", " 5", "٥", "0x10", "1e400", "1" * 30, 2049, 10**30, [], {}, "-5"],
)
def test_max_tokens_is_an_integer_between_one_and_the_context_window(value: Any) -> None:
    refused = refusal({"prompt": "x", "max_tokens": value})
    assert refused.pointer == "/max_tokens"
    assert refused.code == 5006


@pytest.mark.parametrize(
    ("field", "given_", "admitted"),
    [
        ("max_tokens", "12", 12),
        ("max_tokens", 12.0, 12),
        ("max_tokens", "12.0", 12),
        ("temperature", "0.5", 0.5),
        ("temperature", 1, 1),
        ("stream", "true", True),
        ("raw", "false", False),
        ("seed", "42", 42),
    ],
)
def test_string_booleans_and_numeric_strings_are_coerced_where_they_are_declared(
    field: str, given_: Any, admitted: Any
) -> None:
    value = admit({"prompt": "x", field: given_})[field]
    assert value == admitted
    assert type(value) is type(admitted)


def test_text_is_never_coerced() -> None:
    body = {"messages": [{"role": "user", "content": "true"}, {"role": "user", "content": "12"}]}
    assert admit(body) == body
    assert admit({"prompt": "12"}) == {"prompt": "12"}


def test_undeclared_fields_are_removed() -> None:
    body = {"messages": [USER], "seed": None, "surprise": {"a": 1}, "api_base": "http://x", "stream": "true"}
    before = json.dumps(body)
    assert admit(body) == {"messages": [USER], "stream": True}
    assert json.dumps(body) == before


def test_messages_take_precedence_over_a_prompt() -> None:
    assert refusal({"prompt": "x", "messages": []}).pointer == "/messages"
    assert admit({"prompt": "x", "messages": None}) == {"prompt": "x"}


def test_assistant_content_may_be_null() -> None:
    turns = [USER, {"role": "assistant", "content": None}, {"role": "assistant", "content": ""}, USER]
    assert admit({"messages": turns}) == {"messages": turns}


def test_content_may_be_text_parts() -> None:
    turn = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert admit({"messages": [turn]}) == {"messages": [turn]}


@pytest.mark.parametrize(
    "field",
    [
        "chat_template", "chat_template_kwargs", "documents", "add_generation_prompt", "continue_final_message",
        "prompt_embeds", "prompt_embeddings", "inputs_embeds",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["", "openai_chat"])
def test_chat_templates_and_tensors_are_rejected_by_name(field: str, name: str) -> None:
    refused = refusal({"messages": [USER], field: {"secret": 1}}, name=name)
    assert (refused.pointer, refused.code) == (f"/{field}", 5006)
    assert admit({"messages": [USER], field: None}, name=name) == {"messages": [USER]}


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("tools", [{"name": "f", "description": "d", "parameters": {}}], 5006),
        ("functions", [{"name": "f", "code": "c"}], 5006),
        ("tool_choice", "required", 5006),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}, 5006),
        ("response_format", {"type": "json_object"}, 5006),
        ("response_format", {"type": "json_schema", "json_schema": {}}, 5006),
        ("lora", "cf-public-magicoder", 5005),
    ],
)
def test_unsupported_field_is_rejected_by_name(field: str, value: Any, code: int) -> None:
    for name in ("", "openai_chat"):
        refused = refusal({"messages": [USER], field: value}, name=name)  # type: ignore[arg-type]
        assert (refused.pointer, refused.code) == (f"/{field}", code)
        assert refused.message.startswith(f"'/{field}' is not supported")


@pytest.mark.parametrize(
    ("field", "value"),
    [("tools", []), ("functions", []), ("tool_choice", "auto"), ("tool_choice", "none"), ("tools", None),
     ("response_format", {"type": "text"})],
)  # fmt: skip
def test_neutral_values_of_unsupported_fields_are_accepted(field: str, value: Any) -> None:
    assert admit({"messages": [USER], field: value}) == {"messages": [USER]}


def test_logit_bias_without_the_capability_is_rejected() -> None:
    assert refusal({"messages": [USER], "logit_bias": {"5": 1}}, name="openai_chat").pointer == "/logit_bias"
    assert admit({"messages": [USER], "logit_bias": {}}, name="openai_chat") == {"messages": [USER]}


def test_native_schema_accepts_sampling_parameters_and_one_choice() -> None:
    for request in ({"prompt": "x"}, {"messages": [USER]}):
        body = request | {"min_p": 0.1, "stop": ["a"], "stop_token_ids": [3], "logit_bias": {"5": 1}, "n": 1}
        assert admit(body, ABLE) == body
        assert refusal(request | {"n": 2}, ABLE).message == "'/n' must be <= 1"
        assert refusal(request | {"stop": ["a"] * 17}).message == "'/stop' must have <= 16 items"
        assert refusal(request | {"stop_token_ids": [-1]}).message == "'/stop_token_ids/0' must be >= 0"


def test_prompt_needs_the_same_capabilities_as_messages() -> None:
    assert refusal({"prompt": "x", "lora": "a"}).code == 5005
    assert refusal({"prompt": "x", "tools": [{}]}).pointer == "/tools"


def test_tools_of_both_formats_are_accepted_within_limits() -> None:
    flat = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    body = {"messages": [USER], "tools": [flat, {"type": "function", "function": flat}], "tool_choice": "required"}
    assert admit(body, ABLE) == body
    assert refusal({"messages": [USER], "tools": [flat] * 129}, ABLE).message == "'/tools' must have <= 128 items"
    large = flat | {"description": "d" * 300_000}
    assert refusal({"messages": [USER], "tools": [large]}, ABLE).message.endswith("bytes as JSON")
    wrong = refusal({"messages": [USER], "tools": [{}]}, ABLE)
    assert wrong.message.startswith("oneOf at '/tools/0' not met, 0 matches: required properties at '/tools/0'")


def test_chat_tool_may_have_no_parameters() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": None, "parameters": None}}]
    assert admit({"messages": [USER], "tools": tools}, ABLE, "openai_chat")["tools"] == tools
    functions = [{"name": "f", "parameters": None}]
    assert admit({"messages": [USER], "functions": functions}, ABLE, "openai_chat")["functions"] == functions


@pytest.mark.parametrize("name", ["", "openai_chat", "openai_completions"])
def test_every_output_format_is_accepted_in_every_schema(name: str) -> None:
    request: dict[str, Any] = {"prompt": "a"} if name == "openai_completions" else {"messages": [USER]}
    formats: list[dict[str, Any]] = [
        {"guided_regex": "a+"},
        {"guided_choice": ["a"]},
        {"guided_grammar": 'start: "a"'},
        {"structured_outputs": {"regex": "a+"}},
        {"response_format": {"type": "regex", "regex": "a+"}},
        {"response_format": {"type": "json_object", "schema": {"type": "object"}}},
    ]
    for form in formats:
        assert form.items() <= admit(request | form, ABLE, name).items()


def test_images_are_inline_or_on_the_web() -> None:
    def turn(url: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}

    for url in ("data:image/png;base64,AA==", "https://example.com/cat.png"):  # the gateway checks hosts
        assert admit({"messages": [turn(url)]}, ABLE)
    refused = refusal({"messages": [turn("file:///etc/passwd")]}, ABLE)
    assert refused.message == "'/messages/0/content/0/image_url/url' does not have the required form"


def test_lora_name_must_match_its_pattern() -> None:
    assert admit({"prompt": "x", "lora": "cf-public-magicoder"}, ABLE)["lora"] == "cf-public-magicoder"
    assert refusal({"prompt": "x", "lora": "../x"}, ABLE).code == 5006


@pytest.mark.parametrize("name", ["../x", "a/b", "", "x" * 129, 5, ["a"]])
def test_invalid_lora_name_is_reported_also_without_the_capability(name: Any) -> None:
    for schema in ("", "openai_chat"):
        refused = refusal({"messages": [USER], "lora": name}, name=schema)
        assert (refused.pointer, refused.code) == ("/lora", 5006)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "required properties at '/' are 'messages'"),
        ({"prompt": "x"}, "required properties at '/' are 'messages'"),
        ({"n": 2}, "'/n' must be <= 1"),
        ({"n": 0}, "'/n' must be >= 1"),
        ({"n": True}, "Type mismatch of '/n', 'boolean' not in 'integer'"),
        ({"top_k": 1001}, "'/top_k' must be <= 1000"),
        ({"top_p": 1.01}, "'/top_p' must be <= 1"),
        ({"min_p": -0.1}, "'/min_p' must be >= 0"),
        ({"temperature": 6}, "'/temperature' must be <= 5"),
        ({"top_logprobs": 21}, "'/top_logprobs' must be <= 20"),
        ({"logprobs": 3}, "Type mismatch of '/logprobs', 'integer' not in 'boolean'"),
        ({"max_completion_tokens": 0}, "'/max_completion_tokens' must be >= 1"),
        ({"max_tokens": 4096}, "'/max_tokens' must be <= 2048"),
        ({"stop": 5}, "Type mismatch of '/stop', 'integer' not in 'string', 'array'"),
        ({"stop": ["a"] * 17}, "'/stop' must have <= 16 items"),
        ({"stop": "é" * 129}, "'/stop' must have <= 256 bytes"),
        ({"stop": ["a", "é" * 129]}, "'/stop/1' must have <= 256 bytes"),
        ({"stop": [""]}, "'/stop/0' must have >= 1 characters"),
        ({"stream_options": []}, "Type mismatch of '/stream_options', 'array' not in 'object'"),
        (
            {"stream_options": {"include_usage": 1}},
            "Type mismatch of '/stream_options/include_usage', 'integer' not in 'boolean'",
        ),
        ({"seed": 2**63}, "'/seed' must be <= 9223372036854775807"),
    ],
)
def test_openai_chat_body_has_its_own_ranges(body: dict[str, Any], message: str) -> None:
    whole = body if not body or "prompt" in body else {"messages": [USER], **body}
    assert refusal(whole, name="openai_chat").message == message


def test_complete_openai_chat_body_is_accepted() -> None:
    body = {
        "model": "@cf/acme/chat",
        "messages": [{"role": "developer", "content": "be brief"}, USER],
        "max_completion_tokens": 5, "temperature": 0, "top_p": 0, "top_k": 0, "min_p": 0.1, "seed": -3, "n": 1,
        "stop": ["a", "b"], "stream": True, "stream_options": {"include_usage": True}, "logprobs": True,
        "top_logprobs": 20, "presence_penalty": 1, "frequency_penalty": -1,
    }  # fmt: skip
    assert admit(body, name="openai_chat") == body
    lenient = body | {"stream_options": {"include_usage": "true"}, "user": "u", "store": True, "metadata": {}}
    assert admit(lenient, name="openai_chat") == body


def test_up_to_eight_choices_are_accepted() -> None:
    assert admit({"messages": [USER], "n": 8}, ABLE, "openai_chat")["n"] == 8
    assert refusal({"messages": [USER], "n": 9}, ABLE, "openai_chat").message == "'/n' must be <= 8"


def test_chat_template_arguments_need_a_reasoning_model() -> None:
    body = {"messages": [USER], "chat_template_kwargs": {"enable_thinking": "false"}}
    assert admit(body, ABLE, "openai_chat")["chat_template_kwargs"] == {"enable_thinking": False}
    assert refusal(body, CHAT, "openai_chat").pointer == "/chat_template_kwargs"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "required properties at '/' are 'text'"),
        ({"text": None}, "Type mismatch of '/text', 'null' not in 'string', 'array'"),
        ({"text": []}, "'/text' must have >= 1 items"),
        ({"text": ""}, "'/text' must have >= 1 characters"),
        ({"text": ["a", 1]}, "Type mismatch of '/text/1', 'integer' not in 'string'"),
        ({"text": ["a"] * 3001}, "'/text' must have <= 3000 items"),
        ({"text": "a", "pooling": "max"}, "'/pooling' must be one of 'mean', 'cls'"),
        ({"text": "a", "prompt_embeds": "AAAA"}, "'/prompt_embeds' is not accepted from callers"),
    ],
)
def test_texts_to_embed_are_strings(body: dict[str, Any], message: str) -> None:
    assert refusal(body, EMBEDDER).message == message


def test_up_to_three_thousand_texts_are_accepted() -> None:
    body = {"text": ["a"] * 3000, "pooling": "cls"}
    assert admit(body, EMBEDDER) == body


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "required properties at '/' are 'input'"),
        ({"input": [1, 2, 3]}, "Type mismatch of '/input/0', 'integer' not in 'string'"),
        ({"input": [[1, 2]]}, "Type mismatch of '/input/0', 'array' not in 'string'"),
        ({"input": "a", "encoding_format": "hex"}, "'/encoding_format' must be one of 'float', 'base64'"),
        ({"input": "a", "dimensions": 128}, "'/dimensions' must be one of '384'"),
    ],
)
def test_openai_embeddings_accept_text_and_the_model_dimensions(body: dict[str, Any], message: str) -> None:
    assert refusal(body, EMBEDDER, "openai_embeddings").message == message
    good = {"model": "m", "input": ["a"], "encoding_format": "base64", "dimensions": 384}
    assert admit(good, EMBEDDER, "openai_embeddings") == good


@pytest.mark.parametrize("card", [CHAT, ABLE, EMBEDDER, chat_card("@cf/acme/new", schema="openai_chat")])
def test_served_schema_is_the_validating_schema(card: ModelCard) -> None:
    """Strict clients require type, description and additionalProperties at the top of both halves."""
    document = schema_document(card)
    for half in ("input", "output"):
        assert document[half]["type"] == "object"
        assert document[half]["additionalProperties"] is True
        assert document[half]["description"]
        jsonschema_rs.validator_for(document[half])
    assert "x-" not in json.dumps(document)
    for shape in document["input"].get("oneOf", [document["input"]]):
        sample = {shape["required"][0]: [USER] if shape["required"][0] == "messages" else "text"}
        assert admit(sample, card) == sample
        assert jsonschema_rs.is_valid(document["input"], sample)


def test_served_schema_has_the_alternatives_of_the_contract() -> None:
    shapes = schema_document(CHAT)["input"]["oneOf"]
    assert [shape["title"] for shape in shapes] == ["Prompt", "Messages"]
    assert shapes[0]["properties"]["max_tokens"]["default"] == 256
    assert "tools" not in shapes[1]["properties"]
    assert "tools" in schema_document(ABLE)["input"]["oneOf"][1]["properties"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["messages", "prompt", "text", "input", "max_tokens", "stop", "tools", "stream", "lora", "seed", "content", "n"]
)


@given(st.dictionaries(FIELDS | st.text(max_size=5), JSON, max_size=5))
def test_any_body_is_accepted_or_rejected_with_a_message(body: dict[str, Any]) -> None:
    for card, name in ((CHAT, ""), (ABLE, "openai_chat"), (EMBEDDER, ""), (EMBEDDER, "openai_embeddings")):
        try:
            admitted = admit(body, card, name)  # type: ignore[arg-type]
        except SchemaViolation as error:
            refused = error
        else:
            assert admitted.keys() <= body.keys()
            continue
        assert refused.message
        assert refused.pointer.startswith("/")


@given(st.sampled_from(["max_tokens", "stream", "lora", "stop", "tools", "seed", "response_format", "messages"]))
def test_error_message_never_repeats_the_value(field: str) -> None:
    secret = "hunter2" * 3
    for value in (secret, [secret], {secret: secret}, [{secret: [secret]}]):
        for card in (CHAT, ABLE):
            figure = ""
            try:
                admit({"messages": [USER], field: value}, card, "openai_chat")
            except SchemaViolation as refused:
                figure = refused.message + refused.pointer
            assert "hunter2" not in figure


def test_deep_nesting_is_rejected() -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = {"a": deep}
    with pytest.raises(SchemaViolation):
        admit({"messages": deep})


def test_small_body_is_validated_within_tens_of_microseconds() -> None:
    """Validation takes at most sixty times one JSON decode of the body (about 0.4 µs), so that the test holds on any
    machine.
    """
    body = {"messages": [{"role": "system", "content": "be brief"}, USER], "max_tokens": 20, "stream": True}
    text = msgspec.json.encode(body)
    schema = input_schema(CHAT)
    # Thread CPU time, the best of many short rounds, because other processes may use the machine.
    repeat = partial(timeit.repeat, timer=time.thread_time, number=200, repeat=50)
    decode_s = min(repeat(lambda: msgspec.json.decode(text)))
    admit_s = min(repeat(lambda: schema.coerce_and_validate(body)))
    assert admit_s < 60 * decode_s
