"""Tool calls with the official clients: complete, streamed, and with the tool's result.

Under `tool_choice: "auto"`, tests rely on a call only for the plainest question. Every call names an offered tool and
has arguments that satisfy its schema.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudflare import AsyncCloudflare, Cloudflare
from openai import AsyncOpenAI, BadRequestError, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessageToolCall

from tests.platform import Platform, wait_for

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Get the weather in a city", "parameters": CITY}
TIMER = {
    "name": "set_timer",
    "description": "Start a timer",
    "parameters": {
        "type": "object",
        "properties": {"minutes": {"type": "integer"}, "sound": {"enum": ["bell", "horn"]}},
        "required": ["minutes", "sound"],
    },
}
TOOLS: list[Any] = [{"type": "function", "function": tool} for tool in (WEATHER, TIMER)]
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
GREETING = {"role": "user", "content": "Hello"}
RESULT = '{"temperature": 12, "condition": "sunny"}'


def calls_of(response: ChatCompletion) -> list[ChatCompletionMessageToolCall]:
    """Return the calls of a response, which contains nothing else."""
    choice = response.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls
    return choice.message.tool_calls  # type: ignore[return-value]


def assert_satisfies(call: ChatCompletionMessageToolCall, *names: str) -> None:
    """Check that a call names one of these tools and satisfies its schema."""
    arguments = json.loads(call.function.arguments)
    assert call.type == "function"
    assert call.function.name in names
    if call.function.name == "get_weather":
        assert list(arguments) == ["city"]
        assert isinstance(arguments["city"], str)
    else:
        assert list(arguments) == ["minutes", "sound"]
        assert type(arguments["minutes"]) is int
        assert arguments["sound"] in ("bell", "horn")


def test_question_becomes_a_tool_call_and_its_result_a_sentence(platform: Platform, openai: OpenAI):
    request = {"model": platform.chat_model, "tools": TOOLS[:1], "temperature": 0}
    first = openai.chat.completions.create(messages=[QUESTION], **request)
    (call,) = calls_of(first)
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    given = {"role": "tool", "tool_call_id": call.id, "content": RESULT}
    second = openai.chat.completions.create(messages=[QUESTION, first.choices[0].message, given], **request)
    assert second.choices[0].finish_reason == "stop"
    assert (second.choices[0].message.content or "").strip()
    assert second.choices[0].message.tool_calls is None


async def test_async_client_gets_a_tool_call(platform: Platform):
    async with AsyncOpenAI(base_url=f"{platform.ai_url()}/v1", api_key=platform.api_token) as client:
        response = await client.chat.completions.create(
            model=platform.chat_model, messages=[GREETING], tools=TOOLS, tool_choice="required"
        )
    for call in calls_of(response):
        assert_satisfies(call, "get_weather", "set_timer")


@pytest.mark.parametrize("name", ["get_weather", "set_timer"])
def test_named_tool_is_called_once(platform: Platform, openai: OpenAI, name: str):
    response = openai.chat.completions.create(
        model=platform.chat_model,
        messages=[GREETING],
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": name}},
        temperature=1,
    )
    (call,) = calls_of(response)
    assert_satisfies(call, name)


def test_parallel_tool_calls_can_be_disabled(platform: Platform, openai: OpenAI):
    for seed in range(3):
        response = openai.chat.completions.create(
            model=platform.chat_model,
            messages=[GREETING],
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=2,
            seed=seed,
        )
        (call,) = calls_of(response)
        assert_satisfies(call, "get_weather", "set_timer")


def test_tool_choice_none_calls_no_tool(platform: Platform, openai: OpenAI):
    response = openai.chat.completions.create(
        model=platform.chat_model, messages=[QUESTION], tools=TOOLS, tool_choice="none", temperature=0
    )
    assert response.choices[0].message.tool_calls is None
    assert response.choices[0].message.content


def test_tool_call_ids_are_unique(platform: Platform, openai: OpenAI):
    ids = set()
    for _ in range(3):
        request = {"model": platform.chat_model, "messages": [QUESTION], "tools": TOOLS, "tool_choice": "required"}
        calls = calls_of(openai.chat.completions.create(**request))
        assert all(call.id.startswith("call_") for call in calls)
        ids |= {call.id for call in calls}
    assert len(ids) >= 3


def test_stream_has_the_same_tool_call_in_deltas(platform: Platform, openai: OpenAI):
    request = {"model": platform.chat_model, "messages": [QUESTION], "tools": TOOLS[:1], "temperature": 0}
    whole = calls_of(openai.chat.completions.create(**request))
    chunks = list(openai.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    deltas = [delta for chunk in chunks if chunk.choices for delta in chunk.choices[0].delta.tool_calls or ()]
    assert (deltas[0].function.name, deltas[0].type, deltas[0].index) == ("get_weather", "function", 0)
    assert len(deltas) >= 2
    assert not any(delta.id or delta.function.name for delta in deltas[1:])
    assert "".join(delta.function.arguments for delta in deltas) == whole[0].function.arguments
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].usage.completion_tokens > len(deltas)


def test_stream_helper_collects_a_tool_call(platform: Platform, openai: OpenAI):
    request = {"model": platform.chat_model, "messages": [GREETING], "tools": TOOLS, "tool_choice": "required"}
    with openai.chat.completions.stream(**request) as stream:
        final = stream.get_final_completion()
    for call in calls_of(final):
        assert_satisfies(call, "get_weather", "set_timer")


def test_strict_tool_is_enforced_with_tool_choice_auto(platform: Platform, openai: OpenAI):
    strict = [{"type": "function", "function": {**WEATHER, "strict": True}}]
    response = openai.chat.completions.create(
        model=platform.chat_model, messages=[QUESTION], tools=strict, temperature=0
    )
    assert_satisfies(calls_of(response)[0], "get_weather")


def test_deprecated_function_fields_work(platform: Platform, openai: OpenAI):
    response = openai.chat.completions.create(
        model=platform.chat_model,
        messages=[QUESTION],
        functions=[WEATHER],
        function_call={"name": "get_weather"},
        temperature=0,
    )
    assert response.choices[0].finish_reason == "function_call"
    assert json.loads(response.choices[0].message.function_call.arguments) == {"city": "Paris"}


def test_tokens_of_tool_calls_are_in_usage_and_ledger(platform: Platform, openai: OpenAI):
    raw = openai.chat.completions.with_raw_response.create(
        model=platform.chat_model, messages=[QUESTION], tools=TOOLS[:1], tool_choice="required", temperature=0
    )
    usage = raw.parse().usage
    assert usage is not None
    (row,) = wait_for("the call's entry", lambda: platform.usage_rows(raw.headers["cf-ai-req-id"]))
    assert (row["status"], row["completion_tokens"]) == ("tool_calls", usage.completion_tokens)
    assert usage.completion_tokens > 10  # includes start tokens, name and braces


def test_unsupported_tool_schema_is_rejected_only_if_strict(platform: Platform, openai: OpenAI):
    odd = {"name": "odd", "parameters": {"type": "object", "properties": {"a": {"not": {"const": 1}}}}}

    def ask(tool: dict[str, Any]) -> ChatCompletion:
        return openai.chat.completions.create(
            model=platform.chat_model,
            messages=[GREETING],
            tools=[{"type": "function", "function": tool}],
            tool_choice="required",
            max_tokens=80,
        )

    assert ask(odd).choices[0].message.tool_calls
    with pytest.raises(BadRequestError, match="'not'"):
        ask({**odd, "strict": True})


def test_cloudflare_client_runs_a_tool_loop(platform: Platform, cloudflare: Cloudflare):
    request = {"account_id": platform.account_id, "tools": [WEATHER], "temperature": 0}
    first = cloudflare.ai.run(platform.chat_model, messages=[QUESTION], **request)
    assert first["response"] is None
    assert first["tool_calls"] == [{"name": "get_weather", "arguments": {"city": "Paris"}}]
    said = {"role": "assistant", "content": "", "tool_calls": first["tool_calls"]}
    given = {"role": "tool", "name": "get_weather", "content": RESULT}
    second = cloudflare.ai.run(platform.chat_model, messages=[QUESTION, said, given], **request)
    assert second["tool_calls"] == []
    assert second["response"].strip()


async def test_async_cloudflare_client_with_required_tool_choice(platform: Platform):
    async with AsyncCloudflare(base_url=platform.base_url, api_token=platform.api_token) as client:
        result = await client.ai.run(
            platform.chat_model,
            account_id=platform.account_id,
            messages=[GREETING],
            tools=TOOLS,
            extra_body={"tool_choice": {"type": "function", "function": {"name": "set_timer"}}},
        )
    (call,) = result["tool_calls"]
    assert call["name"] == "set_timer"
    assert call["arguments"]["sound"] in ("bell", "horn")


def test_native_stream_has_a_tool_call_in_deltas(platform: Platform, cloudflare: Cloudflare):
    with cloudflare.ai.with_streaming_response.run(
        platform.chat_model,
        account_id=platform.account_id,
        messages=[QUESTION],
        tools=[WEATHER],
        temperature=0,
        stream=True,
    ) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    entries = [entry for event in events for entry in event.get("tool_calls", ())]
    assert entries[0]["function"]["name"] == "get_weather"
    assert entries[-1]["function"] == {"name": None, "arguments": None}
    assert json.loads("".join(entry["function"]["arguments"] or "" for entry in entries)) == {"city": "Paris"}
    assert events[-1]["usage"]["completion_tokens"] > 10


def test_catalog_lists_the_capabilities(platform: Platform, cloudflare: Cloudflare):
    rows = cloudflare.ai.models.list(account_id=platform.account_id, search="spark")
    (row,) = [row for row in rows if row["name"] == platform.chat_model]
    assert {"property_id": "function_calling", "value": "true"} in row["properties"]
    schema = cloudflare.ai.models.schema.get(account_id=platform.account_id, model=platform.chat_model)
    shapes = schema.input.one_of if hasattr(schema.input, "one_of") else schema.input.oneOf
    assert "tools" in shapes[1]["properties"]
