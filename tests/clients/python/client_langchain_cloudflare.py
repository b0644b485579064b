"""`langchain-cloudflare`: its chat model at both endpoints, embeddings, structured output."""

import json

import httpx
import pytest
from langchain_cloudflare import ChatCloudflareWorkersAI, CloudflareWorkersAIEmbeddings
from langchain_core.messages import HumanMessage, ToolMessage
from pydantic import BaseModel
from shared_inputs import ABOUT_ANNA, PERSON, QUESTION, RESULT, TEXTS, WEATHER, is_person, is_sensible

TOOL = {"type": "function", "function": WEATHER}


class Person(BaseModel):
    """A person"""

    name: str
    age: int


class GetWeather(BaseModel):
    """Get the weather in a city"""

    city: str


@pytest.fixture(params=["workers_ai", "openai_compatible"])
def chat(hearth, request):
    return ChatCloudflareWorkersAI(
        model=hearth.chat_model,
        cloudflare_api_token=hearth.api_token,
        cloudflare_account_id=hearth.account_id,
        cloudflare_api_base=hearth.base_url,
        endpoint_format=request.param,
        temperature=0,
    )


def test_complete_and_streamed_chat_are_equal(chat):
    whole = chat.invoke("Hello")
    assert whole.content.strip()
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream("Hello")) == whole.content


async def test_async_chat_whole_and_streamed_say_the_same(chat):
    whole = await chat.ainvoke("Hello")
    assert "".join([chunk.content async for chunk in chat.astream("Hello")]) == whole.content != ""


def test_tools_in_two_steps(chat):
    handy = chat.bind_tools([TOOL])
    question = HumanMessage(QUESTION["content"])
    first = handy.invoke([question])
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    second = handy.invoke([question, first, ToolMessage(RESULT, tool_call_id=call["id"], name="get_weather")])
    assert "12" in second.content


def test_structured_output(chat):
    request = chat.with_structured_output(GetWeather)  # the client sends tool_choice "auto"
    assert request.invoke(QUESTION["content"]) == GetWeather(city="Paris")


def test_required_tool_call_satisfies_its_schema(chat):
    response = chat.bind_tools([Person], tool_choice="any").invoke("Anna is 31 years old.")
    (call,) = response.tool_calls
    assert call["name"] == "Person"
    assert is_person(call["args"])


def test_response_satisfies_the_schema(chat):
    wanted = {"type": "json_schema", "json_schema": PERSON}
    response = chat.bind(response_format=wanted).invoke(ABOUT_ANNA[0]["content"])
    assert is_person(json.loads(response.content))


def test_embeddings(hearth):
    embeddings = CloudflareWorkersAIEmbeddings(
        account_id=hearth.account_id,
        api_token=hearth.api_token,
        model_name=hearth.embed_model,
        api_base_url=f"{hearth.base_url}/accounts",
    )
    assert is_sensible(embeddings.embed_documents(TEXTS))
    assert embeddings.embed_query(TEXTS[0]) == pytest.approx(embeddings.embed_documents(TEXTS)[0], abs=1e-5)


def test_errors_have_the_message_of_the_api(hearth):
    chat = ChatCloudflareWorkersAI(
        model=hearth.chat_model, cloudflare_api_token="cfut_" + "a" * 46, cloudflare_account_id=hearth.account_id,
        cloudflare_api_base=hearth.base_url,
    )  # fmt: skip
    with pytest.raises((httpx.HTTPStatusError, ValueError), match=r"401|Authentication"):
        chat.invoke("Hello")
