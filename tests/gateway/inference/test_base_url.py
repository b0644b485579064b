"""Base URLs of OpenAI clients: `/v1` without an account, and the error for a wrong one."""

from __future__ import annotations

import httpx
import openai
import pytest
from openai import OpenAI

from tests.gateway.process import PARROT
from tests.gateway.site import Running

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(running: Running) -> OpenAI:
    return OpenAI(base_url=f"{running.gateway.url}/v1", api_key=running.tenants.secrets["good"], max_retries=0)


def test_base_url_without_an_account_uses_the_account_of_the_token(client: OpenAI) -> None:
    assert PARROT in {model.id for model in client.models.list()}
    completion = client.chat.completions.create(model=PARROT, messages=HELLO)  # type: ignore[arg-type]
    assert completion.choices[0].message.content


def test_response_stored_below_one_base_url_is_found_below_the_other(client: OpenAI, running: Running) -> None:
    created = client.responses.create(model=PARROT, input="hello")
    whole = OpenAI(base_url=f"{running.account_url}/ai/v1", api_key=running.tenants.secrets["good"])
    assert whole.responses.retrieve(created.id).output_text == client.responses.retrieve(created.id).output_text


@pytest.mark.parametrize("path", ["", "/client/v4", "/client/v4/ai/v1", "/api"])
def test_wrong_base_url_is_rejected_naming_the_right_one(running: Running, path: str) -> None:
    wrong = OpenAI(base_url=running.gateway.url + path, api_key=running.tenants.secrets["good"], max_retries=0)
    with pytest.raises(openai.NotFoundError, match="/v1, or for a certain account"):
        wrong.chat.completions.create(model=PARROT, messages=HELLO)  # type: ignore[arg-type]


def test_unknown_model_gets_a_suggestion(running: Running) -> None:
    url = f"{running.account_url}/ai/v1/chat/completions"
    body = {"model": PARROT + "s", "messages": HELLO}
    message = httpx.post(url, json=body, headers=running.headers()).json()["error"]["message"]
    assert f"Did you mean {PARROT}" in message
    assert "/ai/models/search lists the models" in message
