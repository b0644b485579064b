"""The official clients work against the gateway with only their base URL changed."""

import json

import openai as openai_sdk
import pytest
from cloudflare import APIStatusError, AsyncCloudflare, Cloudflare
from openai import AsyncOpenAI, OpenAI

from tests.fakes.node import WORDS
from tests.gateway.process import ALIAS, PARROT, VECTORS
from tests.gateway.site import Running

TEXT = "".join(WORDS)
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def cloudflare(running: Running):
    with Cloudflare(base_url=running.gateway.base_url, api_token=running.tenants.secrets["good"]) as client:
        yield client


@pytest.fixture
def openai(running: Running):
    with OpenAI(base_url=f"{running.account_url}/ai/v1", api_key=running.tenants.secrets["good"]) as client:
        yield client


def test_cloudflare_run(running: Running, cloudflare: Cloudflare):
    result = cloudflare.ai.run(PARROT, account_id=running.tenants.account_id, messages=HELLO)
    assert result["response"] == TEXT
    assert result["usage"]["total_tokens"] == 7


def test_cloudflare_run_raw_stream(running: Running, cloudflare: Cloudflare):
    account_id = running.tenants.account_id
    with cloudflare.ai.with_streaming_response.run(
        PARROT, account_id=account_id, messages=HELLO, stream=True
    ) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    assert "".join(json.loads(line)["response"] for line in lines[:-1]) == TEXT


async def test_cloudflare_run_async(running: Running):
    client = AsyncCloudflare(base_url=running.gateway.base_url, api_token=running.tenants.secrets["good"])
    async with client:
        result = await client.ai.run(PARROT, account_id=running.tenants.account_id, prompt="Hello")
        vectors = await client.ai.run(VECTORS, account_id=running.tenants.account_id, text=["a", "b"])
    assert result["response"] == TEXT
    assert vectors["shape"] == [2, 8]


def test_cloudflare_models(running: Running, cloudflare: Cloudflare):
    account_id = running.tenants.account_id
    names = [row["name"] for row in cloudflare.ai.models.list(account_id=account_id, per_page=2)]
    assert {PARROT, VECTORS} <= set(names)
    assert len(names) == len(set(names))
    schema = cloudflare.ai.models.schema.get(account_id=account_id, model=PARROT)
    assert schema.input.description
    assert schema.output.description


def test_cloudflare_authors_and_tasks(running: Running, cloudflare: Cloudflare):
    account_id = running.tenants.account_id
    assert "Meta" in {author["name"] for author in cloudflare.ai.authors.list(account_id=account_id)}  # type: ignore[index]
    assert "Translation" in {task["name"] for task in cloudflare.ai.tasks.list(account_id=account_id)}  # type: ignore[index]
    listed = [model["name"] for model in cloudflare.ai.models.list(account_id=account_id, task="Translation")]  # type: ignore[index]
    assert "@cf/meta/m2m100-1.2b" in listed
    routed = cloudflare.ai.models.list(account_id=account_id, format="openrouter", per_page=50)
    assert "@cf/meta/m2m100-1.2b" in [model["id"] for model in routed]  # type: ignore[index]


def test_cloudflare_verify(cloudflare: Cloudflare):
    assert cloudflare.user.tokens.verify().status == "active"


def test_cloudflare_client_with_a_global_key_gets_an_authentication_error(running: Running):
    with (
        Cloudflare(base_url=running.gateway.base_url, api_email="user@example.com", api_key="1" * 32) as client,
        pytest.raises(APIStatusError) as caught,
    ):
        client.ai.run(PARROT, account_id=running.tenants.account_id, prompt="Hello")
    assert caught.value.status_code == 401
    assert caught.value.errors[0].code == 10000


def test_openai_chat(openai: OpenAI):
    answer = openai.chat.completions.create(model=PARROT, messages=HELLO, max_tokens=3)
    assert answer.choices[0].message.content == "".join(WORDS[:3])
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_openai_stream(openai: OpenAI):
    options = {"include_usage": True}
    chunks = list(openai.chat.completions.create(model=PARROT, messages=HELLO, stream=True, stream_options=options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(WORDS)


async def test_openai_stream_async(running: Running):
    secret = running.tenants.secrets["good"]
    async with AsyncOpenAI(base_url=f"{running.account_url}/ai/v1", api_key=secret) as client:
        stream = await client.chat.completions.create(model=ALIAS, messages=HELLO, stream=True)
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert {chunk.model for chunk in chunks} == {ALIAS}


@pytest.mark.usefixtures("relinks")
def test_broken_openai_stream_raises_in_the_client(openai: OpenAI):
    broken = [{"role": "user", "content": '!{"then_after": 2, "then": "die", "gap_s": 0.03}'}]
    stream = openai.chat.completions.create(model=PARROT, messages=broken, stream=True)
    with pytest.raises(openai_sdk.APIError):
        list(stream)


def test_openai_embeddings_in_both_encodings(openai: OpenAI):
    packed = openai.embeddings.create(model=VECTORS, input=["a", "four"])
    plain = openai.embeddings.create(model=VECTORS, input=["a", "four"], encoding_format="float")
    assert [row.embedding for row in packed.data] == [row.embedding for row in plain.data]
    assert packed.data[1].embedding[0] == 4.0
    assert packed.usage.prompt_tokens == 2


def test_openai_models(openai: OpenAI):
    assert {PARROT, VECTORS} <= {model.id for model in openai.models.list()}
    assert openai.models.retrieve(PARROT).owned_by == "test"


def test_openai_errors_raise_the_matching_client_exceptions(running: Running, openai: OpenAI):
    with pytest.raises(openai_sdk.BadRequestError) as caught:
        openai.chat.completions.create(model=PARROT, messages=HELLO, temperature=9)
    assert str(caught.value.code) == "5006"
    wrong = OpenAI(base_url=f"{running.account_url}/ai/v1", api_key="cfut_" + "a" * 46)
    with wrong, pytest.raises(openai_sdk.AuthenticationError):
        wrong.models.list()
