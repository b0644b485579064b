"""Responses, Messages and text completions give the same output as chat completions."""

from __future__ import annotations

import json

from openai import AsyncOpenAI, OpenAI

from tests.platform import Platform

GREETING = "Hello"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def chat(platform: Platform, openai: OpenAI) -> str:
    messages = [{"role": "user", "content": GREETING}]
    response = openai.chat.completions.create(model=platform.chat_model, messages=messages, temperature=0)  # type: ignore[arg-type]
    assert response.choices[0].message.content
    return response.choices[0].message.content


def test_response_complete_and_streamed(platform: Platform, openai: OpenAI):
    whole = openai.responses.create(model=platform.chat_model, input=GREETING, temperature=0)
    assert whole.output_text == chat(platform, openai)
    with openai.responses.stream(model=platform.chat_model, input=GREETING, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == whole.output_text
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens


async def test_response_continues_from_a_tool_call(platform: Platform):
    async with AsyncOpenAI(base_url=f"{platform.ai_url()}/v1", api_key=platform.api_token) as client:
        first = await client.responses.create(
            model=platform.chat_model,
            input="What is the weather in Paris?",
            tools=[WEATHER],  # type: ignore[list-item]
            tool_choice="required",
            temperature=0,
        )
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert call.name == "get_weather"
        assert set(json.loads(call.arguments)) == {"city"}
        second = await client.responses.create(
            model=platform.chat_model,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 12}'}],
            previous_response_id=first.id,
            tools=[WEATHER],  # type: ignore[list-item]
            temperature=0,
        )
    assert second.status == "completed"
    assert second.output


def test_response_in_json(platform: Platform, openai: OpenAI):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "name": "number", "schema": schema, "strict": True}}
    response = openai.responses.create(model=platform.chat_model, input="Give me a number", text=form, temperature=0)  # type: ignore[arg-type]
    assert isinstance(json.loads(response.output_text)["n"], int)


def test_message_complete_and_streamed(platform: Platform, openai: OpenAI):
    body = {"model": platform.chat_model, "max_tokens": 64, "temperature": 0,
            "messages": [{"role": "user", "content": GREETING}]}  # fmt: skip
    url = f"{platform.ai_url()}/v1/messages"
    with platform.client() as client:
        whole = client.post(url, json=body).json()
        streamed = client.post(url, json=body | {"stream": True}).text
    assert whole["content"] == [{"type": "text", "text": chat(platform, openai)}]
    assert whole["stop_reason"] == "end_turn"
    events = [json.loads(frame.split("\ndata: ")[1]) for frame in streamed.split("\n\n") if frame]
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(deltas) == whole["content"][0]["text"]
    assert events[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_text_completion(platform: Platform, openai: OpenAI):
    whole = openai.completions.create(model=platform.chat_model, prompt="The cat", max_tokens=8, temperature=0)
    chunks = openai.completions.create(
        model=platform.chat_model, prompt="The cat", max_tokens=8, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert whole.usage
    assert whole.usage.completion_tokens <= 8
