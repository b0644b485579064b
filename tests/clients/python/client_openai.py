"""The official `openai` SDK, sync and async."""

import json

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import ResponseCompletedEvent
from pydantic import BaseModel
from shared_inputs import (
    ABOUT_ANNA,
    GREETING,
    LISTED_MODEL,
    NO_MODEL,
    PERSON,
    QUESTION,
    RESULT,
    TEXTS,
    TOOLS,
    WEATHER,
    is_person,
    is_sensible,
)  # fmt: skip


@pytest.fixture
def client(hearth):
    with OpenAI(base_url=f"{hearth.ai_url}/v1", api_key=hearth.api_token) as client:
        yield client


@pytest.fixture
async def async_client(hearth):
    async with AsyncOpenAI(base_url=f"{hearth.ai_url}/v1", api_key=hearth.api_token) as client:
        yield client


def test_complete_and_streamed_chat_are_equal(hearth, client):
    request = {"model": hearth.chat_model, "messages": GREETING, "temperature": 0}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content != ""
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens > 0


async def test_async_complete_and_streamed_chat_are_equal(hearth, async_client):
    request = {"model": hearth.chat_model, "messages": GREETING, "temperature": 0}
    whole = await async_client.chat.completions.create(**request)
    stream = await async_client.chat.completions.create(**request, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == whole.choices[0].message.content != ""


def turns_after(message):
    """Return the question, the calls in `message`, and a result for each call."""
    results = [{"role": "tool", "tool_call_id": call.id, "content": RESULT} for call in message.tool_calls]
    return [QUESTION, message, *results]


def test_tools_in_two_steps(hearth, client):
    request = {"model": hearth.chat_model, "tools": TOOLS, "temperature": 0}
    first = client.chat.completions.create(messages=[QUESTION], **request).choices[0]
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    second = client.chat.completions.create(messages=turns_after(first.message), **request).choices[0]
    assert second.finish_reason == "stop"
    assert "12" in second.message.content


async def test_async_tools_in_two_steps_streamed(hearth, async_client):
    request = {"model": hearth.chat_model, "tools": TOOLS, "temperature": 0}
    async with async_client.chat.completions.stream(messages=[QUESTION], **request) as stream:
        first = (await stream.get_final_completion()).choices[0]
    assert first.message.tool_calls[0].function.name == "get_weather"
    second = await async_client.chat.completions.create(messages=turns_after(first.message), **request)
    assert second.choices[0].message.content


def test_response_satisfies_the_schema(hearth, client):
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    response = client.chat.completions.create(model=hearth.chat_model, messages=ABOUT_ANNA, response_format=wanted)
    assert is_person(json.loads(response.choices[0].message.content))


def test_embeddings_as_base64_and_as_floats(hearth, client):
    packed = client.embeddings.create(model=hearth.embed_model, input=TEXTS)  # the client requests base64
    plain = client.embeddings.create(model=hearth.embed_model, input=TEXTS, encoding_format="float")
    assert is_sensible([row.embedding for row in packed.data])
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)


async def test_async_embeddings(hearth, async_client):
    response = await async_client.embeddings.create(model=hearth.embed_model, input=TEXTS)
    assert is_sensible([row.embedding for row in response.data])


def test_response_continues_a_previous_response(hearth, client):
    first = client.responses.create(model=hearth.chat_model, input="My name is Anna.", temperature=0)
    assert (first.status, bool(first.output_text)) == ("completed", True)
    with client.responses.stream(
        model=hearth.chat_model, input="What is my name?", previous_response_id=first.id, temperature=0
    ) as stream:
        events = list(stream)
    assert isinstance(events[-1], ResponseCompletedEvent)
    assert "Anna" in events[-1].response.output_text


async def test_async_responses_call_tools_in_two_steps(hearth, async_client):
    request = {"model": hearth.chat_model, "tools": [{"type": "function", **WEATHER}], "temperature": 0}
    first = await async_client.responses.create(input=[QUESTION], **request)
    (call,) = first.output
    assert (call.type, call.name) == ("function_call", "get_weather")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    second = await async_client.responses.create(input=[QUESTION, call, result], **request)
    assert "12" in second.output_text


def test_stored_response_is_retrieved_and_deleted(hearth, client):
    made = client.responses.create(model=hearth.chat_model, input="Hello", temperature=0)
    found = client.responses.retrieve(made.id)
    assert (found.id, found.output_text) == (made.id, made.output_text)
    (item,) = client.responses.input_items.list(made.id).data
    assert (item.role, item.content[0].text) == ("user", "Hello")
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_background_response_stream_is_resumed(hearth, client):
    made = client.responses.create(model=hearth.chat_model, input="Hello", temperature=0, background=True)
    assert made.status in ("queued", "in_progress")
    events = list(client.responses.retrieve(made.id, stream=True))
    assert isinstance(events[-1], ResponseCompletedEvent)
    assert client.responses.retrieve(made.id).output_text == events[-1].response.output_text != ""
    assert list(client.responses.retrieve(made.id, stream=True, starting_after=3)) == events[4:]
    assert client.responses.cancel(made.id).status == "completed"
    request = client.responses.create(model=hearth.chat_model, input="Hello", background=True, stream=True)
    assert [event.type for event in request][-1] == "response.completed"


def test_token_count_equals_the_charged_prompt_tokens(hearth, client):
    counted = client.responses.input_tokens.count(model=hearth.chat_model, input="Hello")
    usage = client.responses.create(model=hearth.chat_model, input="Hello", store=False).usage
    assert counted.input_tokens == usage.input_tokens > 0


def test_responses_are_parsed_into_pydantic_models(hearth, client):
    class Person(BaseModel):
        name: str
        age: int

    request = {"model": hearth.chat_model, "temperature": 0}
    whole = client.chat.completions.parse(messages=ABOUT_ANNA, response_format=Person, **request)
    assert whole.choices[0].message.parsed == Person(name="Anna", age=31)
    assert client.responses.parse(input=ABOUT_ANNA, text_format=Person, **request).output_parsed.age == 31
    raw = client.chat.completions.with_raw_response.create(messages=GREETING, **request)
    assert raw.headers["cf-ai-req-id"] == raw.request_id
    assert raw.parse().choices[0].message.content


def test_text_completions_of_several_prompts(hearth, client):
    response = client.completions.create(model=hearth.chat_model, prompt=["Once upon", "The sun"], n=2, max_tokens=4)
    assert [choice.index for choice in response.choices] == [0, 1, 2, 3]
    assert response.usage.completion_tokens <= 16
    chunks = list(client.completions.create(model=hearth.chat_model, prompt=["a", "b"], max_tokens=3, stream=True))
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}


def test_models(hearth, client):
    assert {hearth.chat_model, hearth.embed_model} <= {model.id for model in client.models.list()}
    assert client.models.retrieve(hearth.chat_model).id == hearth.chat_model


def test_errors_raise_the_sdk_exceptions(hearth, client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=hearth.chat_model, messages=GREETING, temperature=9)
    assert str(caught.value.code) == "5006"
    assert "temperature" in caught.value.message
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=NO_MODEL, messages=GREETING)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="cfut_" + "a" * 46).models.list()
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=LISTED_MODEL, messages=GREETING)
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert "hearth model pull" in caught.value.message
