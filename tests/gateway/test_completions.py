"""OpenAI's text completions: a text is continued as it is."""

import json

import httpx
import pytest
from openai import OpenAI

from tests.fakes.node import WORDS
from tests.gateway.process import HANDY, PARROT, VECTORS
from tests.gateway.site import Running

TEXT = "".join(WORDS)


@pytest.fixture
def openai(running: Running):
    with OpenAI(base_url=f"{running.account_url}/ai/v1", api_key=running.tenants.secrets["good"]) as client:
        yield client


def complete(client: httpx.Client, running: Running, body: dict) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/v1/completions", json={"model": PARROT} | body)


def test_a_text_is_continued_without_a_template(openai: OpenAI, client: httpx.Client, running: Running):
    answer = openai.completions.create(model=PARROT, prompt="Once upon")
    assert (answer.object, answer.model, answer.choices[0].text) == ("text_completion", PARROT, TEXT)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 6)
    task = running.site.execute_of(complete(client, running, {"prompt": ["Once upon"]})).task
    assert (task.prompt, task.raw, task.sampling.max_tokens) == ("Once upon", True, 16)


def test_a_stream_of_it(openai: OpenAI):
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


def test_a_stream_that_breaks_has_no_done(client: httpx.Client, running: Running):
    broken = "!" + json.dumps({"then_after": 2, "then": "die", "gap_s": 0.03})
    frames = complete(client, running, {"prompt": broken, "stream": True}).text.split("\n\n")
    assert json.loads(frames[-2].removeprefix("data: "))["error"]["code"] == 3008


@pytest.mark.parametrize(
    "body",
    [{}, {"prompt": ""}, {"prompt": []}, {"prompt": ["a", "b"]}, {"prompt": [1, 2]}, {"prompt": [[1]]}, {"prompt": 1},
     {"prompt": "x", "max_tokens": 0}, {"prompt": "x", "suffix": "y"}, {"prompt": "x", "best_of": 9},
     {"prompt": "x", "echo": True, "logprobs": 1}, {"prompt": "x", "logprobs": 21}, {"prompt": "x", "n": 2}],
    ids=json.dumps,
)  # fmt: skip
def test_what_does_not_fit_is_named(client: httpx.Client, running: Running, body: dict):
    answer = complete(client, running, body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 5006), answer.text


def test_a_model_of_another_task_is_no_model_of_this_route(client: httpx.Client, running: Running):
    assert complete(client, running, {"model": VECTORS, "prompt": "x"}).json()["error"]["code"] == 5007
    asked = {"prompt": "x", "response_format": {"type": "json_object"}}
    assert complete(client, running, asked).status_code == 400
    assert complete(client, running, asked | {"model": HANDY}).status_code == 200
