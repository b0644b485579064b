"""Text completions over a real server on the reference model: output, rejections, freed blocks and crashes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from bench import engine_serve
from tests.engine.standalone.serve_process import ServeProcess, serving
from tests.waiting import wait_until, wait_until_blocking

MODEL = "stories260K"


@pytest.fixture(scope="module")
def folder(test_data: Path) -> Path:
    return test_data / "models" / MODEL


@pytest.fixture(scope="module")
def cases(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "reference.json").read_text())["cases"]
    return found


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with serving(tmp_path_factory.mktemp("serve"), folder, "--kv-memory", "32MiB", "--coalesce-ms", "0") as server:
        yield server


@pytest.fixture
def client(server: ServeProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest_asyncio.fixture
async def http(server: ServeProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        yield client


def test_greedy_texts_are_the_reference_s(client: OpenAI, cases: list[dict[str, Any]]):
    case = next(case for case in cases if case["prompt"])
    completion = client.completions.create(model=MODEL, prompt=case["prompt"], max_tokens=len(case["greedy_ids"]))
    assert completion.choices[0].text == case["text"].removeprefix(case["prompt"])
    assert completion.usage is not None
    assert completion.usage.completion_tokens == len(case["greedy_ids"])


def test_token_ids_are_the_same_prompt_as_their_text(client: OpenAI, server: ServeProcess):
    text = "Once upon a time, there was a dog"
    token_ids = httpx.post(f"{server.url}/tokenize", json={"prompt": text}).json()["tokens"]
    prompts: list[Any] = [text, [text], token_ids, [token_ids]]
    texts = {client.completions.create(model=MODEL, prompt=prompt).choices[0].text for prompt in prompts}
    assert len(texts) == 1
    back = httpx.post(f"{server.url}/detokenize", json={"tokens": token_ids}).json()
    assert back == {"prompt": text}
    bare = httpx.post(f"{server.url}/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    assert token_ids == [1, *bare]  # load generators request this to truncate prompts


def test_log_probabilities_are_the_reference_s_in_columns(client: OpenAI, cases: list[dict[str, Any]]):
    case = next(case for case in cases if case["prompt"])
    completion = client.completions.create(model=MODEL, prompt=case["prompt_ids"], max_tokens=4, logprobs=2)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens).strip() == completion.choices[0].text.strip()
    assert logprobs.text_offset == [sum(map(len, logprobs.tokens[:i])) for i in range(4)]
    expected = [dict(map(tuple, step["top5"])) for step in case["steps"][:4]]
    drawn = [top[step["token"]] for top, step in zip(expected, case["steps"], strict=False)]
    assert logprobs.token_logprobs == pytest.approx(drawn, abs=2e-3)
    assert logprobs.top_logprobs is not None
    for token, top, step in zip(logprobs.tokens, logprobs.top_logprobs, expected, strict=True):
        assert token in top
        assert sorted(top.values(), reverse=True)[:2] == pytest.approx(
            sorted(step.values(), reverse=True)[:2], abs=2e-3
        )


def test_a_stream_is_the_whole_text_in_pieces_with_usage_at_the_end(client: OpenAI):
    whole = client.completions.create(model=MODEL, prompt="Tim had a", max_tokens=20, logprobs=1)
    stream = client.completions.create(
        model=MODEL, prompt="Tim had a", max_tokens=20, logprobs=1, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.text for choice in choices) == whole.choices[0].text
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    offsets = [offset for choice in choices[:-1] for offset in choice.logprobs.text_offset]  # type: ignore[union-attr]
    assert offsets == whole.choices[0].logprobs.text_offset  # type: ignore[union-attr]


def test_several_prompts_with_several_choices_come_in_order(client: OpenAI):
    prompts = ["Once upon a time", "The little girl"]
    each = [client.completions.create(model=MODEL, prompt=prompt) for prompt in prompts]
    alone = [completion.choices[0].text for completion in each]
    many = client.completions.create(model=MODEL, prompt=prompts, n=2)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in many.choices] == [alone[0], alone[0], alone[1], alone[1]]
    counts = [completion.usage.prompt_tokens for completion in each if completion.usage]
    assert many.usage is not None
    # the tokens of a prompt are counted once
    assert (many.usage.prompt_tokens, many.usage.completion_tokens) == (sum(counts), 64)
    streamed = [""] * 4
    for chunk in client.completions.create(model=MODEL, prompt=prompts, n=2, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [choice.text for choice in many.choices]


def test_one_seed_gives_different_and_reproducible_choices(client: OpenAI):
    def draw() -> list[str]:
        found = client.completions.create(model=MODEL, prompt="One day", n=4, seed=7, temperature=1.2)
        return [choice.text for choice in found.choices]

    first = draw()
    assert first == draw()
    assert len(set(first)) > 1


def test_the_best_of_several_are_the_likeliest(client: OpenAI):
    def mean(logprobs: Any) -> float:
        return sum(logprobs.token_logprobs) / len(logprobs.token_logprobs)

    request = {"model": MODEL, "prompt": "One day", "seed": 3, "temperature": 1.5, "logprobs": 0}
    every = client.completions.create(**request, n=4)
    best = client.completions.create(**request, n=1, best_of=4)
    assert mean(best.choices[0].logprobs) == max(mean(choice.logprobs) for choice in every.choices)
    assert best.usage == every.usage


def test_echo_puts_the_prompt_before_the_completion(client: OpenAI):
    plain = client.completions.create(model=MODEL, prompt="Tim had a").choices[0].text
    assert client.completions.create(model=MODEL, prompt="Tim had a", echo=True).choices[0].text == "Tim had a" + plain
    chunks = client.completions.create(model=MODEL, prompt="Tim had a", echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Tim had a" + plain


def test_prompt_logprobs_equal_completion_logprobs_of_the_same_text(client: OpenAI, cases: list[dict[str, Any]]):
    """Evaluation tools request `echo`, `logprobs` and at most one completion token. With `max_tokens` 0 there is no
    completion.
    """
    case = next(case for case in cases if case["prompt"])
    request = {"model": MODEL, "prompt": case["prompt_ids"], "logprobs": 2, "temperature": 0}
    made = client.completions.create(**request, max_tokens=20, extra_body={"ignore_eos": True}).choices[0]
    assert made.logprobs is not None
    ids = [*case["prompt_ids"], *case["greedy_ids"][:20]]
    for max_tokens in (0, 1):
        echoed = client.completions.create(**request | {"prompt": ids}, echo=True, max_tokens=max_tokens)
        (choice,) = echoed.choices
        assert choice.logprobs is not None
        assert echoed.usage is not None
        assert (echoed.usage.prompt_tokens, echoed.usage.completion_tokens) == (len(ids), max_tokens)
        assert choice.text.startswith(case["prompt"] + made.text)
        columns = choice.logprobs
        assert columns.token_logprobs[0] is columns.top_logprobs[0] is None
        assert columns.tokens[len(case["prompt_ids"]) : len(ids)] == made.logprobs.tokens
        found = columns.token_logprobs[len(case["prompt_ids"]) : len(ids)]
        assert found == pytest.approx(made.logprobs.token_logprobs, abs=1e-4)
        seen = zip(columns.text_offset[2:], columns.tokens[2:], strict=True)
        assert all(choice.text.startswith(token, offset) for offset, token in seen)


def test_echo_logprobs_are_equal_in_streams_and_in_every_choice(client: OpenAI):
    request = {"model": MODEL, "prompt": ["One day a", "Tom"], "logprobs": 1, "echo": True, "max_tokens": 4, "seed": 1}
    whole = client.completions.create(**request, n=2, temperature=1)
    texts, logprobs, offsets = ({index: [] for index in range(4)} for _ in range(3))
    for chunk in client.completions.create(**request, n=2, temperature=1, stream=True):
        for choice in chunk.choices:
            texts[choice.index].append(choice.text)
            if choice.logprobs is not None:
                logprobs[choice.index] += choice.logprobs.token_logprobs
                offsets[choice.index] += choice.logprobs.text_offset
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert "".join(texts[choice.index]) == choice.text
        assert logprobs[choice.index] == choice.logprobs.token_logprobs
        assert offsets[choice.index] == choice.logprobs.text_offset
    first, second = (whole.choices[index].logprobs for index in (0, 1))
    assert first is not None
    assert second is not None
    assert first.token_logprobs[:-4] == second.token_logprobs[:-4]


def test_stop_token_ends_the_text_and_is_not_included(client: OpenAI, cases: list[dict[str, Any]]):
    case = next(case for case in cases if case["prompt"])
    stop = case["greedy_ids"][3]
    number = case["greedy_ids"].index(stop)
    body = {"ignore_eos": True, "stop_token_ids": [stop]}
    completion = client.completions.create(model=MODEL, prompt=case["prompt_ids"], max_tokens=30, extra_body=body)
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == number + 1
    assert case["text"].startswith(case["prompt"] + completion.choices[0].text)


async def test_the_request_of_a_load_generator_is_served_to_its_last_token(http: httpx.AsyncClient):
    """The fields sent by vLLM's serving benchmark: without coalescing one chunk per token, then finish reason and
    usage."""
    body = {
        "model": MODEL,
        "prompt": "Once upon a time",
        "temperature": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 100,
        "min_tokens": 100,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "top_k": -1,
        "min_p": 0.0,
        "priority": 0,
    }
    num_chunks, last = 0, ""
    async with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line:
                assert line.startswith("data: ")
                document = line.removeprefix("data: ")
                if document != "[DONE]":
                    chunk = json.loads(document)
                    num_chunks += bool(chunk["choices"])
                    usage = chunk["usage"]
                last = document
    assert last == "[DONE]"
    assert usage["completion_tokens"] == 100
    assert 90 <= num_chunks <= 101  # fewer than 101 if a token ends in the middle of a character


def test_own_load_generator_measures_the_server(server: ServeProcess, capsys: pytest.CaptureFixture[str]):
    flags = ["--streams", "3", "--requests", "6", "--prompt-tokens", "20", "--new-tokens", "10", "--rounds", "1"]
    engine_serve.main(["--url", server.url, "--vocab-size", "512", *flags])
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["mean_prompt_tokens"], found["mean_output_tokens"]) == (MODEL, 20, 10)
    assert 0 < found["ttft_ms"]["p50"] <= found["e2e_ms"]["max"]


async def test_disconnected_client_frees_its_blocks_at_once(http: httpx.AsyncClient, server: ServeProcess):
    held = f'hearth_replica_blocks{{model="{MODEL}",state="in_use"}}'
    await wait_until(lambda: server.metric(held) == 0)
    body = {"prompt": ["Once", "Upon"] * 8, "max_tokens": 480, "ignore_eos": True, "stream": True}
    for _ in range(5):  # repeated, because the output may end before the test disconnects
        async with http.stream("POST", "/v1/completions", json=body) as response:
            await anext(response.aiter_lines())
            num_held = server.metric(held)
        if num_held > 0:
            break
    assert num_held > 0
    aborted = f'hearth_calls_total{{model="{MODEL}",outcome="aborted"}}'
    await wait_until(lambda: server.metric(held) == 0)
    before = server.metric(aborted)
    for _ in range(5):
        with contextlib.suppress(httpx.ReadTimeout):  # the client stops waiting for an unstreamed response
            await http.post("/v1/completions", json={**body, "stream": False}, timeout=httpx.Timeout(60, read=0.1))
            continue
        break
    await wait_until(lambda: server.metric(held) == 0 and server.metric(aborted) > before)


async def test_concurrent_streams_do_not_change_each_other(server: ServeProcess, client: OpenAI):
    prompts = [f"One day, number {number} went" for number in range(12)]
    alone = [client.completions.create(model=MODEL, prompt=prompt).choices[0].text for prompt in prompts]

    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as together:

        async def one(prompt: str) -> str:
            stream = await together.completions.create(model=MODEL, prompt=prompt, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

        assert await asyncio.gather(*map(one, prompts)) == alone


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [[1], "a"]}, "prompt"),
    ({"prompt": [1, 512]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 513}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 511}, "max_tokens"),  # the prompt needs more than one token of the context
    ({"prompt": "a", "n": 0}, "n"),
    ({"prompt": "a", "best_of": 1, "n": 2}, "best_of"),
    ({"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "logprobs": True}, "logprobs"),
    ({"prompt": "a", "echo": True, "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "echo": True, "best_of": 2}, "best_of"),
    ({"prompt": "a", "echo": True, "max_tokens": -1}, "max_tokens"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "n": 129}, "n"),
    ({"prompt": "a", "logit_bias": {"512": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias"),
    ({"prompt": "a", "min_tokens": 3, "stop": "x"}, "min_tokens"),
    ({"prompt": "a", "min_tokens": 31, "max_tokens": 30}, "min_tokens"),
    ({"prompt": "a", "min_tokens": -1}, "min_tokens"),
    ({"prompt": "a", "stop_token_ids": [-1]}, "stop_token_ids"),
    ({"prompt": "a", "temperature": "hot"}, "temperature"),
    ({"prompt": "a", "stream": "yes"}, "stream"),
    ({"prompt": "a", "stream_options": []}, "stream_options"),
    ({"prompt": "a", "model": 5}, "model"),
    ({"prompt": "a", "prompt_embeds": "x"}, "prompt_embeds"),
]


@pytest.mark.parametrize(("body", "field"), BAD)
def test_invalid_body_is_rejected_naming_the_field(server: ServeProcess, body: dict[str, Any], field: str):
    response = httpx.post(f"{server.url}/v1/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", field)
    assert f"{field}'" in error["message"]


@pytest.mark.parametrize("content", [b"", b"junk", b"[1]", b"[" * 100_000, b'{"prompt": "\xff"}'])
def test_body_that_is_not_an_object_is_rejected(server: ServeProcess, content: bytes):
    response = httpx.post(f"{server.url}/v1/completions", content=content)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


def test_too_long_prompt_is_rejected_with_both_lengths(client: OpenAI):
    with pytest.raises(BadRequestError, match="512") as caught:
        client.completions.create(model=MODEL, prompt=[5] * 600)
    assert caught.value.code == "context_length_exceeded"


def test_a_body_that_is_too_large_is_not_read(server: ServeProcess):
    request = b"POST /v1/completions HTTP/1.1\r\nhost: engine\r\ncontent-length: 1073741824\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30) as connection:
        connection.sendall(request)
        response = b"".join(iter(lambda: connection.recv(1 << 16), b""))  # reads until the server closes the connection
    assert response.startswith(b"HTTP/1.1 413 ")
    assert b'"body_too_large"' in response


def test_models_routes_and_names(client: OpenAI, server: ServeProcess, folder: Path):
    listed = [model.id for model in client.models.list()]
    assert listed == [MODEL, str(folder)]
    assert client.models.retrieve(str(folder)).id == str(folder)
    assert client.completions.create(model=str(folder), prompt="a").model == str(folder)
    with pytest.raises(NotFoundError):
        client.models.retrieve("another")
    with pytest.raises(NotFoundError, match="another"):
        client.completions.create(model="another", prompt="a")
    assert httpx.get(f"{server.url}/v1/completions").status_code == 405
    assert httpx.get(f"{server.url}/v1/nothing").status_code == 404
    assert httpx.get(f"{server.url}/version").json()["version"]


def test_metrics_count_served_requests(client: OpenAI, server: ServeProcess):
    before = server.metric(f'hearth_completion_tokens_total{{model="{MODEL}"}}')
    client.completions.create(model=MODEL, prompt="a", max_tokens=7, extra_body={"ignore_eos": True})
    assert server.metric(f'hearth_completion_tokens_total{{model="{MODEL}"}}') == before + 7
    assert server.metric('hearth_requests_total{route="/v1/completions",status="200"}') > 0
    assert server.metric(f'hearth_replica_steps{{model="{MODEL}"}}') > 0


def test_rejected_requests_do_not_crash_the_model_process(server: ServeProcess):
    assert server.metric(f'hearth_rank_restarts_total{{model="{MODEL}"}}') == 0
    assert server.metric("hearth_internal_errors_total") == 0


async def test_dead_rank_ends_streams_with_an_error_and_is_restarted(http: httpx.AsyncClient, server: ServeProcess):
    body = {"prompt": "Once", "max_tokens": 500, "ignore_eos": True, "stream": True}
    async with http.stream("POST", "/v1/completions", json={**body, "prompt": ["Once"] * 32}) as response:
        lines = response.aiter_lines()
        await anext(lines)
        os.kill(server.rank_pid(), signal.SIGKILL)
        remaining = [line async for line in lines if line]
    assert json.loads(remaining[-1].removeprefix("data: "))["error"]["type"] == "server_error"
    assert "data: [DONE]" not in remaining
    # waits until the new rank is ready
    reply = await http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 3})
    assert reply.status_code == 200
    wait_until_blocking(lambda: httpx.get(f"{server.url}/health").status_code == 200)
