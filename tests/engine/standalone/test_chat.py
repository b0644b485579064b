"""Chat completions over a real server on the built-in model, with a key and one sequence at a time; then shutdown."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, AuthenticationError, BadRequestError, OpenAI, RateLimitError

from catalog.builtin import find_folder
from tests.engine.standalone.serve_process import ServeProcess, serving
from tests.waiting import wait_until

MODEL = "talker"
KEY = "a-key-for-tests"
ASK = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "key").write_text(KEY + "\n")
    flags = ["--served-model-name", MODEL, "--api-key", f"@{folder / 'key'}", "--max-model-len", "512"]
    flags += ["--max-sequences", "1", "--max-waiting", "0", "--kv-memory", "64MiB", "--dtype", "float32"]
    with serving(folder, find_folder("@cf/hearth/spark"), *flags) as server:
        yield server


@pytest.fixture
def client(server: ServeProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest_asyncio.fixture
async def together(server: ServeProcess) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_the_model_s_own_defaults_and_the_flags_hold(client: OpenAI, server: ServeProcess):
    """spark's generation_config.json selects greedy decoding, so two responses are equal."""
    responses = [client.chat.completions.create(model=MODEL, messages=ASK) for _ in range(2)]
    assert "Paris" in (responses[0].choices[0].message.content or "")
    assert responses[0].choices[0].message == responses[1].choices[0].message
    assert responses[0].choices[0].finish_reason == "stop"
    (listed,) = client.models.list()
    assert (listed.id, listed.to_dict()["max_model_len"]) == (MODEL, 512)
    assert "float32" in server.printed


def test_a_stream_begins_with_the_role_and_ends_with_reason_usage_and_done(client: OpenAI, server: ServeProcess):
    whole = client.chat.completions.create(model=MODEL, messages=ASK)
    body = {"model": MODEL, "messages": ASK, "stream": True, "stream_options": {"include_usage": True}}
    headers = {"authorization": f"Bearer {KEY}"}
    text = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60).text
    documents = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert documents[-1] == "[DONE]"
    *chunks, end, usage = map(json.loads, documents[:-1])
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    content = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert content == whole.choices[0].message.content
    assert end["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], whole.usage.total_tokens)  # type: ignore[union-attr]


async def test_the_asynchronous_client_streams_with_log_probabilities(together: AsyncOpenAI):
    stream = await together.chat.completions.create(
        model=MODEL, messages=ASK, stream=True, logprobs=True, top_logprobs=2, max_completion_tokens=4
    )
    chunks = [chunk async for chunk in stream]
    tokens = [entry for chunk in chunks if (found := chunk.choices[0].logprobs) for entry in found.content or ()]
    assert len(tokens) == 4
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in tokens)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_tokenize_shows_the_prompt_that_a_conversation_becomes(client: OpenAI, server: ServeProcess):
    headers = {"authorization": f"Bearer {KEY}"}
    found = httpx.post(f"{server.url}/tokenize", json={"messages": ASK}, headers=headers).json()
    response = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1)
    assert response.usage is not None
    assert found["count"] == len(found["tokens"]) == response.usage.prompt_tokens


def test_without_key_only_health_and_metrics_are_served(server: ServeProcess):
    with (
        OpenAI(base_url=f"{server.url}/v1", api_key="another", max_retries=0) as unauthenticated,
        pytest.raises(AuthenticationError) as caught,
    ):
        unauthenticated.chat.completions.create(model=MODEL, messages=ASK)
    assert caught.value.code == "invalid_api_key"
    assert KEY not in str(caught.value)
    for path in ("/v1/models", "/tokenize"):
        assert httpx.request("GET" if "models" in path else "POST", f"{server.url}{path}").status_code == 401
    for path in ("/health", "/metrics", "/version"):
        assert httpx.get(f"{server.url}{path}").status_code == 200
    assert KEY not in server.printed + server.stderr


def test_unsupported_parameter_that_would_change_the_output_is_rejected(client: OpenAI):
    for name, value in {"echo": True, "add_generation_prompt": False, "continue_final_message": True}.items():
        with pytest.raises(BadRequestError, match=name):
            client.chat.completions.create(model=MODEL, messages=ASK, extra_body={name: value})
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "nobody", "content": ""}])  # type: ignore[misc,list-item]
    assert caught.value.param == "messages[0].role"
    with pytest.raises(BadRequestError, match="not for text-embeddings"):
        client.embeddings.create(model=MODEL, input="a")


def test_tools_and_formats_behave_like_on_a_gateway(client: OpenAI):
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    function = {"name": "get_weather", "description": "The weather in a city", "parameters": parameters}
    request: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
    }
    whole = client.chat.completions.create(**request).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.tool_calls is not None
    assert set(json.loads(whole.message.tool_calls[0].function.arguments)) == {"city"}  # type: ignore[union-attr]
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**request, stream=True)]
    pieces = [piece.function for delta in deltas for piece in delta.tool_calls or ()]
    assert pieces[0].name == "get_weather"
    assert "".join(piece.arguments or "" for piece in pieces) == whole.message.tool_calls[0].function.arguments  # type: ignore[union-attr]
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": parameters}}
    response = client.chat.completions.create(model=MODEL, messages=ASK, response_format=form)  # type: ignore[arg-type]
    assert set(json.loads(response.choices[0].message.content or "")) == {"city"}


async def test_full_server_sends_retry_after(together: AsyncOpenAI):
    endless = {"ignore_eos": True}
    stream = await together.chat.completions.create(
        model=MODEL, messages=ASK, stream=True, max_tokens=480, extra_body=endless
    )
    await anext(stream)
    with pytest.raises(RateLimitError) as caught:
        await together.chat.completions.create(model=MODEL, messages=ASK)
    assert caught.value.code == "out_of_capacity"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    await stream.close()

    async def is_free() -> bool:
        try:
            return bool(await together.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1))
        except RateLimitError:
            return False

    await wait_until(is_free)


async def test_shutdown_finishes_running_responses_and_starts_none(together: AsyncOpenAI, server: ServeProcess):
    """The last test of this server: after SIGTERM the stream continues to its end, and the exit code is 0."""
    stream = await together.chat.completions.create(
        model=MODEL, messages=ASK, stream=True, max_tokens=450, extra_body={"ignore_eos": True}
    )
    await anext(stream)
    server.terminate()
    async with httpx.AsyncClient() as http:
        await wait_until(lambda: is_refused(http, server))
    reasons = [chunk.choices[0].finish_reason async for chunk in stream]
    assert reasons[-1] == "length"
    assert server.exit_code() == 0
    assert "stopped after" in server.stderr
    assert '"level": "error"' not in server.stderr


async def is_refused(http: httpx.AsyncClient, server: ServeProcess) -> bool:
    return (await http.get(f"{server.url}/health")).status_code == 503
