"""The official `cloudflare` SDK, sync, async and over aiohttp. Responses are validated against the SDK's types."""

import json

import cloudflare
import pytest
from cloudflare import AsyncCloudflare, Cloudflare, DefaultAioHttpClient
from shared_inputs import (
    ABOUT_ANNA,
    GREETING,
    LISTED_MODEL,
    PERSON,
    QUESTION,
    RESULT,
    RETIRED_MODEL,
    TEXTS,
    WEATHER,
    is_person,
    is_sensible,
)  # fmt: skip


@pytest.fixture
def client(hearth):
    strict = {"_strict_response_validation": True}
    with Cloudflare(base_url=hearth.base_url, api_token=hearth.api_token, **strict) as client:
        yield client


@pytest.fixture(params=["httpx", "aiohttp"])
async def async_client(hearth, request):
    http_client = DefaultAioHttpClient() if request.param == "aiohttp" else None
    client = AsyncCloudflare(base_url=hearth.base_url, api_token=hearth.api_token, http_client=http_client)
    async with client:
        yield client


def events_in(lines):
    """Return the events of a native stream, which must end with `[DONE]`."""
    data = [line.removeprefix("data: ") for line in lines if line]
    assert data[-1] == "[DONE]"
    return [json.loads(event) for event in data[:-1]]


def test_complete_and_streamed_run_are_equal(hearth, client):
    request = {"account_id": hearth.account_id, "messages": GREETING, "temperature": 0}
    whole = client.ai.run(hearth.chat_model, **request)
    with client.ai.with_streaming_response.run(hearth.chat_model, **request, stream=True) as response:
        events = events_in(response.iter_lines())
    assert "".join(event["response"] for event in events) == whole["response"] != ""
    assert events[-1]["usage"] == whole["usage"]


async def test_async_run(hearth, async_client):
    request = {"account_id": hearth.account_id, "messages": GREETING, "temperature": 0}
    whole = await async_client.ai.run(hearth.chat_model, **request)
    async with async_client.ai.with_streaming_response.run(hearth.chat_model, **request, stream=True) as response:
        events = events_in([line async for line in response.iter_lines()])
    assert "".join(event["response"] for event in events) == whole["response"] != ""


def test_tools_in_two_steps(hearth, client):
    request = {"account_id": hearth.account_id, "tools": [WEATHER], "temperature": 0}
    first = client.ai.run(hearth.chat_model, messages=[QUESTION], **request)
    assert first["tool_calls"] == [{"name": "get_weather", "arguments": {"city": "Paris"}}]
    said = {"role": "assistant", "content": "", "tool_calls": first["tool_calls"]}
    result = {"role": "tool", "name": "get_weather", "content": RESULT}
    second = client.ai.run(hearth.chat_model, messages=[QUESTION, said, result], **request)
    assert "12" in second["response"]


def test_response_satisfies_the_schema(hearth, client):
    wanted = {"type": "json_schema", "json_schema": PERSON}
    response = client.ai.run(
        hearth.chat_model, account_id=hearth.account_id, messages=ABOUT_ANNA, response_format=wanted
    )
    assert is_person(response["response"])


def test_embeddings(hearth, client):
    response = client.ai.run(hearth.embed_model, account_id=hearth.account_id, text=TEXTS)
    assert response["shape"] == [3, 384]
    assert is_sensible(response["data"])


async def test_async_embeddings(hearth, async_client):
    response = await async_client.ai.run(hearth.embed_model, account_id=hearth.account_id, text=TEXTS)
    assert is_sensible(response["data"])


async def test_async_lists_terminate(hearth, async_client):
    names = [row["name"] async for row in async_client.ai.models.list(account_id=hearth.account_id, per_page=40)]
    assert hearth.chat_model in names
    assert len(names) == len(set(names))


def test_schema_and_token(hearth, client):
    schema = client.ai.models.schema.get(account_id=hearth.account_id, model=hearth.chat_model)
    assert schema.input.description
    assert client.user.tokens.verify().status == "active"


def test_errors_have_their_codes(hearth, client):
    with pytest.raises(cloudflare.BadRequestError) as caught:
        client.ai.run(hearth.chat_model, account_id=hearth.account_id, prompt="x", extra_body={"top_k": 999})
    assert caught.value.errors[0].code == 5006
    with pytest.raises(cloudflare.BadRequestError) as caught:
        client.ai.run(LISTED_MODEL, account_id=hearth.account_id, prompt="x")
    assert caught.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(cloudflare.APIStatusError, match="Please use @cf/") as caught:
        client.ai.run(RETIRED_MODEL, account_id=hearth.account_id, prompt="x")
    assert (caught.value.status_code, caught.value.errors[0].code) == (410, 5028)
    with pytest.raises(cloudflare.PermissionDeniedError):
        client.ai.run(hearth.chat_model, account_id="0" * 32, prompt="x")
    with pytest.raises(cloudflare.AuthenticationError):
        client.copy(api_token="cfut_" + "a" * 46).user.tokens.verify()
