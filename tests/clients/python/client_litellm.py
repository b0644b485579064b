"""`litellm` with its OpenAI, Cloudflare and Anthropic providers."""

import json

import litellm
import pytest
from shared_inputs import ABOUT_ANNA, GREETING, NO_MODEL, PERSON, QUESTION, RESULT, TEXTS, TOOLS, is_person, is_sensible


@pytest.fixture(autouse=True)
def _quiet():
    litellm.telemetry = False
    litellm.suppress_debug_info = True


@pytest.fixture
def openai_way(hearth):
    return {"model": f"openai/{hearth.chat_model}", "api_base": f"{hearth.ai_url}/v1", "api_key": hearth.api_token}


@pytest.fixture
def cloudflare_way(hearth):
    own = {"api_base": f"{hearth.ai_url}/run/", "api_key": hearth.api_token}
    return own | {"model": f"cloudflare/{hearth.chat_model}"}


@pytest.fixture
def anthropic_way(hearth):
    own = {"api_base": f"{hearth.ai_url}/v1/messages", "api_key": hearth.api_token}
    return own | {"model": f"anthropic/{hearth.chat_model}", "max_tokens": 64}


@pytest.mark.parametrize("way", ["openai_way", "cloudflare_way", "anthropic_way"])
def test_complete_and_streamed_chat(way, request):
    fields = {**request.getfixturevalue(way), "messages": GREETING}
    assert litellm.completion(**fields).choices[0].message.content.strip()
    chunks = list(litellm.completion(**fields, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).strip()
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


async def test_async_chat_streamed(openai_way):
    stream = await litellm.acompletion(**openai_way, messages=GREETING, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]).strip()


@pytest.mark.parametrize("way", ["openai_way", "anthropic_way"])
def test_tools_in_two_steps(way, request):
    fields = {**request.getfixturevalue(way), "tools": TOOLS, "temperature": 0}
    first = litellm.completion(messages=[QUESTION], **fields).choices[0].message
    (call,) = first.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": RESULT}
    second = litellm.completion(messages=[QUESTION, first.model_dump(), result], **fields)
    assert "12" in second.choices[0].message.content


def test_response_satisfies_the_schema(openai_way):
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    response = litellm.completion(**openai_way, messages=ABOUT_ANNA, response_format=wanted)
    assert is_person(json.loads(response.choices[0].message.content))


def test_embeddings(hearth, openai_way):
    response = litellm.embedding(**openai_way | {"model": f"openai/{hearth.embed_model}"}, input=TEXTS)
    assert is_sensible([row["embedding"] for row in response.data])


def test_responses(openai_way):
    response = litellm.responses(**openai_way, input="Hello")
    assert response.output[0].content[0].text.strip()


def test_errors_raise_the_client_exceptions(openai_way):
    with pytest.raises(litellm.BadRequestError, match="No such model"):
        litellm.completion(**openai_way | {"model": f"openai/{NO_MODEL}"}, messages=GREETING)
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**openai_way | {"api_key": "cfut_" + "a" * 46}, messages=GREETING)
