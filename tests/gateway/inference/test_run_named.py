"""`POST A/ai/run`, where the body names the model; and calls that would rather be refused than wait."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.fakes.node import WORDS
from tests.gateway.process import CHATTY, PARROT, VECTORS
from tests.gateway.site import Running
from tests.waiting import wait_until_blocking

TEXT = "".join(WORDS)


def ask(client: httpx.Client, running: Running, body: Any, query: str = "") -> httpx.Response:
    return client.post(f"{running.account_url}/ai/run{query}", json=body)


def test_named_run_equals_the_run_with_the_model_in_the_path(client: httpx.Client, running: Running):
    response = ask(client, running, {"model": PARROT, "input": {"prompt": "Hello"}, "options": {"tags": ["a"]}})
    assert response.json()["result"]["response"] == TEXT
    own = client.post(f"{running.account_url}/ai/run/{PARROT}", json={"prompt": "Hello"})
    assert own.json()["result"] == response.json()["result"]
    chat = ask(client, running, {"model": CHATTY, "input": {"messages": [{"role": "user", "content": "x"}]}})
    assert chat.json()["result"]["choices"][0]["message"]["content"] == TEXT
    vectors = ask(client, running, {"model": VECTORS, "input": {"text": ["a", "four"]}})
    assert vectors.json()["result"]["data"][1][0] == 4.0
    stream = ask(client, running, {"model": PARROT, "input": {"prompt": "Hello", "stream": True}})
    assert stream.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"input": {"prompt": "x"}}, "'model'"),
        ({"model": PARROT}, "'input'"),
        ({"model": PARROT, "input": "x"}, "'/input'"),
        ({"model": PARROT, "input": {}}, "'prompt'"),
        ({"model": PARROT, "input": {"prompt": "x"}, "options": 1}, "'/options'"),
        ({"model": PARROT, "input": {"prompt": "x"}, "options": {"webhookUrl": "https://x.example"}}, "'/options/back"),
    ],
)
def test_invalid_field_is_named(client: httpx.Client, running: Running, body: dict[str, Any], word: str):
    response = ask(client, running, body)
    (error,) = response.json()["errors"]
    assert (response.status_code, error["code"]) == (400, 5006)
    assert word in error["message"]


def test_reject_if_busy_refuses_a_call_that_would_wait(client: httpx.Client, running: Running):
    rejecting = {"messages": [{"role": "user", "content": "x"}], "model": PARROT, "options": {"rejectIfBusy": True}}
    url = f"{running.account_url}/ai/v1/chat/completions"
    assert client.post(url, json=rejecting).status_code == 200
    nodes = running.site.nodes.values()
    try:
        for node in nodes:
            node.num_waiting = 3
            node.publish()
        wait_until_blocking(lambda: client.post(url, json=rejecting).status_code == 429)
        refused = client.post(f"{running.account_url}/ai/run/{PARROT}?rejectIfBusy=true", json={"prompt": "x"})
        assert refused.json()["errors"][0]["code"] == 3040
        assert refused.headers["retry-after"]
        assert client.post(f"{running.account_url}/ai/run/{PARROT}", json={"prompt": "x"}).status_code == 200
    finally:
        for node in nodes:
            node.num_waiting = 0
            node.publish()
    wait_until_blocking(lambda: client.post(url, json=rejecting).status_code == 200)
