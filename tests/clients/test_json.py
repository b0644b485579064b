"""Output formats with the official clients: every response satisfies its format."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import jsonschema_rs
import pytest
from cloudflare import APIStatusError, Cloudflare
from openai import AsyncOpenAI, BadRequestError, OpenAI
from pydantic import BaseModel

from tests.platform import Platform

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WRAPPED: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
MESSAGES: Any = [{"role": "user", "content": "Give me the name and age as JSON: Anna is 31 years old."}]


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    legs: int
    is_good: bool


def is_person(text: str) -> bool:
    return jsonschema_rs.is_valid(PERSON, json.loads(text))


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_schema_is_met_complete_and_streamed(platform: Platform, openai: OpenAI, temperature: float):
    request = {
        "model": platform.chat_model, "messages": MESSAGES, "response_format": WRAPPED, "temperature": temperature,
        "seed": 1,
    }  # fmt: skip
    whole = openai.chat.completions.create(**request).choices[0]
    assert whole.finish_reason == "stop"
    assert is_person(whole.message.content or "")
    chunks = list(openai.chat.completions.create(**request, stream=True))
    assert is_person("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_async_client_uses_a_schema(platform: Platform):
    async with AsyncOpenAI(base_url=f"{platform.ai_url()}/v1", api_key=platform.api_token) as client:
        response = await client.chat.completions.create(
            model=platform.chat_model,
            messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": PERSON},  # type: ignore[arg-type]
            temperature=0,
        )
    assert is_person(response.choices[0].message.content or "")


def test_parse_helper_returns_an_object_of_the_given_class(platform: Platform, openai: OpenAI):
    response = openai.chat.completions.parse(
        model=platform.chat_model, messages=[{"role": "user", "content": "Hello"}], response_format=Pet
    )
    pet = response.choices[0].message.parsed
    assert isinstance(pet, Pet)
    assert pet.kind in ("cat", "dog")


def test_json_object_format_returns_an_object(platform: Platform, openai: OpenAI):
    response = openai.chat.completions.create(
        model=platform.chat_model,
        messages=[{"role": "user", "content": "Extract name and city as JSON: Maria lives in Oslo."}],
        response_format={"type": "json_object"},
        max_tokens=400,
    )
    assert isinstance(json.loads(response.choices[0].message.content or ""), dict)


def test_list_is_closed_at_the_token_limit(platform: Platform, openai: OpenAI):
    schema: Any = {"type": "array", "items": {"type": "string"}}
    response = openai.chat.completions.create(
        model=platform.chat_model,
        messages=MESSAGES,
        response_format={"type": "json_schema", "json_schema": {"name": "list", "schema": schema}},
        max_tokens=30,
    )
    assert jsonschema_rs.is_valid(schema, json.loads(response.choices[0].message.content or ""))


def test_value_that_cannot_be_closed_ends_with_finish_reason_length(platform: Platform, openai: OpenAI):
    response = openai.chat.completions.create(
        model=platform.chat_model, messages=MESSAGES, response_format=WRAPPED, max_tokens=3
    )
    assert response.choices[0].finish_reason == "length"
    assert (response.choices[0].message.content or "").startswith("{")


def test_unsupported_schema_is_rejected_naming_the_keyword(platform: Platform, openai: OpenAI):
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    with pytest.raises(BadRequestError, match="'not', which is not supported"):
        openai.chat.completions.create(
            model=platform.chat_model,
            messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )


def test_with_tools_the_response_is_the_format_or_a_tool_call(platform: Platform, openai: OpenAI):
    tool: Any = {"type": "function", "function": {"name": "now"}}
    for seed in range(3):
        response = openai.chat.completions.create(
            model=platform.chat_model,
            messages=[{"role": "user", "content": "Hello"}],
            tools=[tool],
            response_format=WRAPPED,
            temperature=1.5,
            seed=seed,
        )
        message = response.choices[0].message
        calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]  # type: ignore[union-attr]
        assert set(calls) == {("now", "{}")} if calls else is_person(message.content or "")


@pytest.mark.parametrize(
    "form",
    [{"response_format": {"type": "json_schema", "json_schema": PERSON}}, {"guided_json": PERSON}],
)
@pytest.mark.parametrize("prompt_fields", [{"messages": MESSAGES}, {"prompt": MESSAGES[0]["content"]}])
def test_native_json_mode_returns_the_object(
    platform: Platform, cloudflare: Cloudflare, form: dict[str, Any], prompt_fields: dict[str, Any]
):
    result = cloudflare.ai.run(platform.chat_model, account_id=platform.account_id, **prompt_fields, extra_body=form)
    assert jsonschema_rs.is_valid(PERSON, result["response"])
    assert result["usage"]["completion_tokens"] > 5


FORMATS: list[tuple[dict[str, Any], str]] = [
    ({"guided_regex": "[A-C]{3}-[0-9]{2}"}, "[A-C]{3}-[0-9]{2}"),
    ({"response_format": {"type": "regex", "regex": "[AB]{4}"}}, "[AB]{4}"),
    ({"guided_choice": ["red", "green"]}, "red|green"),
    ({"structured_outputs": {"choice": ["red", "green"]}}, "red|green"),
    ({"guided_grammar": 'start: "a" "b"'}, "ab"),
    ({"response_format": {"type": "grammar", "grammar": 'root ::= "a" "b" [0-9]'}}, "ab[0-9]"),
]


@pytest.mark.parametrize(("form", "pattern"), FORMATS)
def test_format_is_met_on_every_route(platform: Platform, form: dict[str, Any], pattern: str):
    chat = {"model": platform.chat_model, "messages": MESSAGES}
    requests: list[tuple[str, dict[str, Any]]] = [
        (f"/run/{platform.chat_model}", {"messages": MESSAGES}),
        (f"/run/{platform.chat_model}", {"prompt": "Hello"}),
        ("/v1/chat/completions", chat),
        ("/v1/completions", {"model": platform.chat_model, "prompt": "Hello", "max_tokens": 40}),
    ]
    if "response_format" in form:
        requests.append(("/v1/responses", {"model": platform.chat_model, "input": "Hello", "text": {
            "format": form["response_format"]}}))  # fmt: skip
    with platform.client() as client:
        for path, body in requests:
            sent = body if "input" in body else body | form
            response = client.post(platform.ai_url() + path, json=sent | {"temperature": 1.5})
            assert response.status_code == 200, (path, response.text)
            assert re.fullmatch(pattern, text_of(response.json())), path


def text_of(response: dict[str, Any]) -> str:
    """Return the text of a response in any API format."""
    if response.get("result"):
        return str(response["result"]["response"])
    if "output" in response:
        return str(response["output"][0]["content"][0]["text"])
    choice = response["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def test_native_json_mode_may_be_streamed(platform: Platform, cloudflare: Cloudflare):
    with cloudflare.ai.with_streaming_response.run(
        platform.chat_model,
        account_id=platform.account_id,
        messages=MESSAGES,
        response_format={"type": "json_schema", "json_schema": PERSON},
        stream=True,
    ) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    assert is_person("".join(json.loads(line)["response"] for line in lines[:-1]))


def test_native_json_mode_that_cannot_be_met_is_an_error(platform: Platform, cloudflare: Cloudflare):
    with pytest.raises(APIStatusError) as caught:
        cloudflare.ai.run(
            platform.chat_model,
            account_id=platform.account_id,
            messages=MESSAGES,
            response_format={"type": "json_object"},
            max_tokens=1,
        )
    assert caught.value.status_code == 400
    error = caught.value.response.json()["errors"][0]
    assert error == {"code": 5024, "message": "AiError: JSON Mode couldn't be met"}
