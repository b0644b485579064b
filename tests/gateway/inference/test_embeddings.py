"""Embeddings, native and for OpenAI clients, as floats and as base64."""

import base64
import struct

import httpx
import pytest

from tests.gateway.process import PARROT, VECTORS
from tests.gateway.site import Running

ROW = [0.25 * i for i in range(1, 8)]


def run(client: httpx.Client, running: Running, body: dict) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/run/{VECTORS}", json=body)


def embed(client: httpx.Client, running: Running, body: dict) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/v1/embeddings", json={"model": VECTORS} | body)


def test_native_embeddings_have_shape_data_and_pooling(client: httpx.Client, running: Running):
    body = run(client, running, {"text": ["a", "four"]}).json()
    assert body["result"] == {"shape": [2, 8], "data": [[1.0, *ROW], [4.0, *ROW]], "pooling": "mean"}
    assert run(client, running, {"text": "a", "pooling": "cls"}).json()["result"]["pooling"] == "cls"


def test_openai_embeddings_are_the_same_in_both_encodings(client: httpx.Client, running: Running):
    plain = embed(client, running, {"input": ["a", "four"]}).json()
    packed = embed(client, running, {"input": ["a", "four"], "encoding_format": "base64"}).json()
    assert [row["embedding"] for row in plain["data"]] == [[1.0, *ROW], [4.0, *ROW]]
    assert [row["index"] for row in plain["data"]] == [0, 1]
    unpacked = [list(struct.unpack("<8f", base64.b64decode(row["embedding"]))) for row in packed["data"]]
    assert unpacked == [row["embedding"] for row in plain["data"]]
    assert plain["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    assert plain["model"] == VECTORS


def test_thousand_texts_are_embedded_in_one_call(client: httpx.Client, running: Running):
    body = embed(client, running, {"input": ["text"] * 1000}).json()
    assert len(body["data"]) == 1000


@pytest.mark.parametrize("body", [{}, {"input": []}, {"input": ""}, {"input": [1, 2]}, {"input": None},
                                  {"input": "x", "encoding_format": "hex"}])  # fmt: skip
def test_input_without_text_is_rejected(client: httpx.Client, running: Running, body: dict):
    response = embed(client, running, body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, 5006)


def test_model_of_another_task_is_unknown_to_the_route(client: httpx.Client, running: Running):
    response = embed(client, running, {"input": "x", "model": PARROT})
    assert (response.status_code, response.json()["errors"][0]["code"]) == (400, 5007)
    chat = client.post(
        f"{running.account_url}/ai/v1/chat/completions",
        json={"model": VECTORS, "messages": [{"role": "user", "content": "x"}]},
    )
    assert (chat.status_code, chat.json()["errors"][0]["code"]) == (400, 5007)
