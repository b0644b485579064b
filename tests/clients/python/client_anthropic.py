"""Anthropic's official SDK, sync and async, at `/ai/v1/messages`."""

import json

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from pydantic import BaseModel
from shared_inputs import CITY, GREETING, NO_MODEL, QUESTION, RESULT

GREEDY = {"temperature": 0}  # the client has no parameter for it
TOOLS = [{"name": "get_weather", "description": "Get the weather in a city", "input_schema": CITY}]


@pytest.fixture
def client(hearth):
    with Anthropic(base_url=hearth.ai_url, api_key=hearth.api_token) as client:
        yield client


@pytest.fixture
async def async_client(hearth):
    async with AsyncAnthropic(base_url=hearth.ai_url, auth_token=hearth.api_token, api_key=None) as client:
        yield client


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def test_complete_and_streamed_message_are_equal(hearth, client):
    request = {"model": hearth.chat_model, "messages": GREETING, "max_tokens": 64, "extra_body": GREEDY}
    whole = client.messages.create(**request)
    assert whole.stop_reason == "end_turn"
    with client.messages.stream(**request) as stream:
        assert "".join(stream.text_stream) == text_of(whole) != ""
        assert stream.get_final_message().usage.output_tokens == whole.usage.output_tokens


class Person(BaseModel):
    name: str
    age: int


def test_parsed_message_has_the_requested_type(hearth, client):
    question = [{"role": "user", "content": "Extract name and age as JSON: Maria is 30 years old."}]
    request = {"model": hearth.chat_model, "messages": question, "max_tokens": 100}
    parsed = client.messages.parse(**request, output_format=Person)
    assert isinstance(parsed.parsed_output, Person)
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    whole = client.messages.create(**request, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(text_of(whole)).keys() == {"name"}


async def test_async_stream(hearth, async_client):
    request = {"model": hearth.chat_model, "messages": GREETING, "max_tokens": 64}
    async with async_client.messages.stream(**request) as stream:
        assert "".join([text async for text in stream.text_stream])


def test_tools_in_two_steps(hearth, client):
    request = {"model": hearth.chat_model, "tools": TOOLS, "max_tokens": 64, "extra_body": GREEDY}
    first = client.messages.create(messages=[QUESTION], **request)
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    said = {"role": "assistant", "content": [block.model_dump() for block in first.content]}
    second = client.messages.create(messages=[QUESTION, said, {"role": "user", "content": [result]}], **request)
    assert "12" in text_of(second)


def test_token_count_equals_the_charged_prompt_tokens(hearth, client):
    request = {"model": hearth.chat_model, "messages": GREETING}
    counted = client.messages.count_tokens(**request)
    usage = client.messages.create(**request, max_tokens=1).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens > 0
    assert client.messages.count_tokens(**request, tools=TOOLS).input_tokens > counted.input_tokens


def test_errors_raise_the_sdk_exceptions(hearth, client):
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(model=NO_MODEL, messages=GREETING, max_tokens=8)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="cfut_" + "a" * 46).messages.create(
            model=hearth.chat_model, messages=GREETING, max_tokens=8
        )
