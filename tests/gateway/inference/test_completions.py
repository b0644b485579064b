"""OpenAI's text completions."""

import json

import httpx
import pytest
from openai import OpenAI

from tests.fakes.node import WORDS
from tests.gateway.process import CHATTY, HANDY, PARROT, VECTORS
from tests.gateway.site import Running
from tests.waiting import wait_until_blocking

TEXT = "".join(WORDS)


@pytest.fixture
def openai(running: Running):
    with OpenAI(base_url=f"{running.account_url}/ai/v1", api_key=running.tenants.secrets["good"]) as client:
        yield client


def complete(client: httpx.Client, running: Running, body: dict) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/v1/completions", json={"model": PARROT} | body)


def script(**fields) -> str:
    return "!" + json.dumps(fields)


def test_text_completion_uses_no_chat_template(openai: OpenAI, client: httpx.Client, running: Running):
    response = openai.completions.create(model=PARROT, prompt="Once upon")
    assert (response.object, response.model, response.choices[0].text) == ("text_completion", PARROT, TEXT)
    assert response.choices[0].finish_reason == "stop"
    assert response.usage is not None
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (2, 6)
    task = running.site.execute_of(complete(client, running, {"prompt": ["Once upon"]})).task
    assert (task.prompt, task.raw, task.sampling.max_tokens) == ("Once upon", True, 16)


def test_text_completion_can_be_streamed(openai: OpenAI):
    options = {"include_usage": True}
    chunks = list(
        openai.completions.create(model=PARROT, prompt="Once", max_tokens=3, stream=True, stream_options=options)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "".join(WORDS[:3])
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


def test_echo_begins_with_the_prompt_whole_and_streamed(openai: OpenAI):
    whole = openai.completions.create(model=PARROT, prompt="Once", echo=True)
    pieces = openai.completions.create(model=PARROT, prompt="Once", echo=True, stream=True)
    assert whole.choices[0].text == "".join(chunk.choices[0].text for chunk in pieces) == "Once" + TEXT


def test_settings_reach_the_node(client: httpx.Client, running: Running):
    body = {"prompt": "x", "max_tokens": 5, "temperature": 0, "stop": "y", "logprobs": 2, "seed": 3}
    sampling = running.site.execute_of(complete(client, running, body)).task.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.stop, sampling.logprobs) == (5, 0, ("y",), 2)


@pytest.mark.parametrize(
    "body",
    [{"guided_regex": "[a-z]+"}, {"guided_choice": ["a", "b"]}, {"guided_grammar": 'start: "a"'},
     {"structured_outputs": {"regex": "[a-z]+"}}, {"response_format": {"type": "regex", "regex": "[a-z]+"}}],
    ids=json.dumps,
)  # fmt: skip
def test_text_completions_support_the_output_formats_of_chat(client: httpx.Client, running: Running, body: dict):
    task = running.site.execute_of(complete(client, running, body | {"model": HANDY, "prompt": "x"})).task
    assert task.constraint is not None


def test_stop_sequences_reach_the_node(client: httpx.Client, running: Running):
    body = {"prompt": "x", "max_tokens": 5, "stop_token_ids": [3, 4], "min_tokens": 2}
    sampling = running.site.execute_of(complete(client, running, body)).task.sampling
    assert (sampling.stop_token_ids, sampling.min_tokens) == ((3, 4), 2)


@pytest.mark.parametrize(
    ("body", "is_echoed"),
    [({"prompt": "x"}, False), ({"prompt": [5]}, True), ({"prompt": "x", "logprobs": 1}, True),
     ({"prompt": "x", "max_tokens": 0}, True)],
    ids=json.dumps,
)  # fmt: skip
def test_node_echoes_prompts_that_only_the_node_can_render(
    client: httpx.Client, running: Running, body: dict, is_echoed: bool
):
    assert running.site.execute_of(complete(client, running, body | {"echo": True})).task.echoes_prompt == is_echoed


@pytest.mark.usefixtures("relinks")
def test_broken_stream_has_no_done(client: httpx.Client, running: Running):
    broken = "!" + json.dumps({"then_after": 2, "then": "die", "gap_s": 0.03})
    frames = complete(client, running, {"prompt": broken, "stream": True}).text.split("\n\n")
    assert json.loads(frames[-2].removeprefix("data: "))["error"]["code"] == 3008


@pytest.mark.parametrize(
    "body",
    [{}, {"prompt": ""}, {"prompt": []}, {"prompt": ["a", 2]}, {"prompt": [1, -2]}, {"prompt": [[1], "a"]},
     {"prompt": 1},
     {"prompt": [[]]}, {"prompt": ["a", ""]}, {"prompt": ["a"] * 129}, {"prompt": [1.5]},
     {"prompt": "x", "best_of": 2, "n": 2}, {"model": CHATTY, "prompt": "x", "best_of": 2, "n": 3},
     {"model": CHATTY, "prompt": "x", "best_of": 2, "stream": True},
     {"prompt": "x", "max_tokens": 0}, {"prompt": "x", "suffix": "y"}, {"prompt": "x", "best_of": 9},
     {"model": CHATTY, "prompt": "x", "echo": True, "best_of": 2}, {"prompt": "x", "logprobs": 21},
     {"prompt": "x", "stop_token_ids": [-1]}, {"prompt": "x", "stop_token_ids": [1] * 17},
     {"prompt": "x", "min_tokens": 17}, {"prompt": "x", "min_tokens": 1, "stop": "y"}, {"prompt": "x", "n": 2}],
    ids=json.dumps,
)  # fmt: skip
def test_invalid_field_is_named(client: httpx.Client, running: Running, body: dict):
    response = complete(client, running, body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, 5006), response.text


# Lists of prompts


def test_each_prompt_of_a_list_is_a_call_of_its_own(openai: OpenAI, running: Running):
    before = running.site.num_executes
    raw = openai.completions.with_raw_response.create(model=CHATTY, prompt=["one", "two words"], n=2, echo=True)
    response = raw.parse()
    assert [choice.index for choice in response.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in response.choices]
    assert (texts[0], texts[2]) == ("one" + TEXT, "two words" + TEXT)
    assert texts[1] != texts[0]
    assert {choice.finish_reason for choice in response.choices} == {"stop"}
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (3, 24)
    assert running.site.num_executes == before + 2
    request_id = raw.headers["cf-ai-req-id"]
    rows = [running.site.usage_row(request_id), running.site.usage_row(f"{request_id}-1")]
    assert [row["prompt_tokens"] for row in rows] == [1, 2]
    assert float(raw.headers["cf-ai-neurons"]) == round(sum(row["micro_neurons"] for row in rows) / 1e6, 2)


def test_token_ids_reach_the_node_as_they_are(client: httpx.Client, running: Running):
    assert running.site.execute_of(complete(client, running, {"prompt": [5, 6]})).task.prompt_token_ids == (5, 6)
    response = complete(client, running, {"prompt": [[5, 6], [7]], "max_tokens": 2})
    assert [choice["text"] for choice in response.json()["choices"]] == ["".join(WORDS[:2])] * 2


def test_stream_of_several_prompts_numbers_the_choices(openai: OpenAI):
    stream = openai.completions.create(
        model=PARROT, prompt=["a", "b", "c"], stream=True, stream_options={"include_usage": True}
    )
    texts, ends, last = {0: "", 1: "", 2: ""}, [], None
    for chunk in stream:
        last = chunk
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            ends += [choice.index] if choice.finish_reason else []
    assert set(texts.values()) == {TEXT}
    assert sorted(ends) == [0, 1, 2]
    assert last is not None
    assert last.usage is not None
    assert last.usage.completion_tokens == 18


@pytest.mark.usefixtures("relinks")
def test_failure_of_one_prompt_ends_the_others(client: httpx.Client, running: Running):
    slow, bad = script(gap_s=0.2, repeat=20), script(tokens=[], end="internal")
    response = complete(client, running, {"prompt": [slow, bad]})
    assert response.json()["error"]["code"] == 3008
    wait_until_blocking(lambda: sum(node.num_open_calls for node in running.site.nodes.values()) == 0)
    request_id = response.headers["cf-ai-req-id"]
    assert running.site.usage_row(request_id)["status"] == "aborted"
    frames = complete(client, running, {"prompt": ["a", script(then_after=2, gap_s=0.05)], "stream": True}).text
    assert json.loads(frames.split("\n\n")[-2].removeprefix("data: "))["error"]["code"] == 3008


def test_disconnect_ends_the_calls_of_all_prompts(client: httpx.Client, running: Running):
    slow = script(gap_s=0.2, repeat=20)
    url, body = f"{running.account_url}/ai/v1/completions", {"model": PARROT, "prompt": [slow] * 3, "stream": True}
    with client.stream("POST", url, json=body) as response:
        next(response.iter_raw())
    wait_until_blocking(lambda: sum(node.num_open_calls for node in running.site.nodes.values()) == 0)
    request_id = response.headers["cf-ai-req-id"]
    for name in (request_id, f"{request_id}-1", f"{request_id}-2"):
        assert running.site.usage_row(name)["status"] == "client_left"


def test_best_of_returns_the_best_candidates(client: httpx.Client, running: Running):
    response = complete(client, running, {"model": CHATTY, "prompt": ["a", "b"], "best_of": 3, "n": 2})
    assert [choice["index"] for choice in response.json()["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in response.json()["choices"])
    assert response.json()["usage"]["completion_tokens"] == 2 * 3 * 6
    task = running.site.execute_of(response).task
    assert (task.num_choices, task.sampling.logprobs) == (3, 0)


def test_model_of_another_task_is_unknown_to_the_route(client: httpx.Client, running: Running):
    assert complete(client, running, {"model": VECTORS, "prompt": "x"}).json()["error"]["code"] == 5007
    request = {"prompt": "x", "response_format": {"type": "json_object"}}
    assert complete(client, running, request).status_code == 400
    assert complete(client, running, request | {"model": HANDY}).status_code == 200
