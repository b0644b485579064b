"""The official SDKs with only their base URL changed, on a platform with the built-in models."""

from __future__ import annotations

import json

import pytest
from cloudflare import AsyncCloudflare, Cloudflare
from openai import AsyncOpenAI, OpenAI

from tests.platform import Platform

GREETING = [{"role": "user", "content": "Hello"}]


def test_cloudflare_client_runs_a_chat_model(platform: Platform, cloudflare: Cloudflare):
    result = cloudflare.ai.run(platform.chat_model, account_id=platform.account_id, messages=GREETING, temperature=0)
    assert isinstance(result["response"], str)
    assert result["response"].strip()
    usage = result["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_cloudflare_client_streams_the_same_response(platform: Platform, cloudflare: Cloudflare):
    whole = cloudflare.ai.run(platform.chat_model, account_id=platform.account_id, messages=GREETING, temperature=0)
    with cloudflare.ai.with_streaming_response.run(
        platform.chat_model, account_id=platform.account_id, messages=GREETING, temperature=0, stream=True
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    assert "".join(event["response"] for event in events) == whole["response"]
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_async_cloudflare_client_runs_a_chat_model(platform: Platform):
    async with AsyncCloudflare(base_url=platform.base_url, api_token=platform.api_token) as client:
        result = await client.ai.run(platform.chat_model, account_id=platform.account_id, prompt="Hello")
    assert result["response"].strip()


def test_cloudflare_client_embeds_texts(platform: Platform, cloudflare: Cloudflare):
    result = cloudflare.ai.run(
        platform.embed_model, account_id=platform.account_id, text=["a cat", "a kitten", "tax law"]
    )
    assert result["shape"] == [3, 384]
    cat, kitten, law = result["data"]
    assert dot(cat, kitten) > dot(cat, law) + 0.2


def dot(left: list[float], right: list[float]) -> float:
    return sum(x * y for x, y in zip(left, right, strict=True))


def test_cloudflare_client_lists_models_and_the_list_ends(platform: Platform, cloudflare: Cloudflare):
    names = [row["name"] for row in cloudflare.ai.models.list(account_id=platform.account_id)]
    assert platform.chat_model in names
    assert platform.embed_model in names
    assert len(names) == len(set(names))


def test_cloudflare_client_reads_a_models_schema(platform: Platform, cloudflare: Cloudflare):
    schema = cloudflare.ai.models.schema.get(account_id=platform.account_id, model=platform.chat_model)
    assert schema.input.type == "object"
    assert schema.output.description


def test_cloudflare_client_verifies_its_token(cloudflare: Cloudflare):
    assert cloudflare.user.tokens.verify().status == "active"


def test_openai_client_chats(platform: Platform, openai: OpenAI):
    response = openai.chat.completions.create(model=platform.chat_model, messages=GREETING, temperature=0)
    assert response.choices[0].message.content.strip()
    assert response.choices[0].finish_reason == "stop"
    assert response.usage.completion_tokens > 0


def test_openai_client_streams_with_usage(platform: Platform, openai: OpenAI):
    whole = openai.chat.completions.create(model=platform.chat_model, messages=GREETING, temperature=0)
    chunks = list(
        openai.chat.completions.create(
            model=platform.chat_model,
            messages=GREETING,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_async_openai_client_streams(platform: Platform):
    async with AsyncOpenAI(base_url=f"{platform.ai_url()}/v1", api_key=platform.api_token) as client:
        stream = await client.chat.completions.create(model=platform.chat_model, messages=GREETING, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert text.strip()


def test_openai_client_embeds_in_both_encodings(platform: Platform, openai: OpenAI):
    packed = openai.embeddings.create(model=platform.embed_model, input=["hello", "world"])
    plain = openai.embeddings.create(model=platform.embed_model, input=["hello", "world"], encoding_format="float")
    assert len(packed.data) == 2
    assert packed.data[1].embedding == pytest.approx(plain.data[1].embedding, abs=1e-6)
    assert packed.usage.prompt_tokens > 0


def test_openai_client_lists_models(platform: Platform, openai: OpenAI):
    assert platform.chat_model in {model.id for model in openai.models.list()}
    assert openai.models.retrieve(platform.chat_model).id == platform.chat_model
