"""The one echo: in the account that a setting names, and nowhere else. The SDK's own test files need it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.fakes.node import WORDS
from tests.gateway.process import ALIAS, PARROT, GatewayProcess
from tests.gateway.site import Running


@pytest.fixture(scope="module")
def tenanted(running: Running) -> Iterator[GatewayProcess]:
    """Another gateway of the same site, whose test tenant is the site's main account."""
    objects_url = f"file://{running.site.folder / 'objects'}"
    with running.beside(HEARTH_TEST_TENANT=running.tenants.account_id, OBJECTS_URL=objects_url) as gateway:
        yield gateway


def ask(
    gateway: GatewayProcess, running: Running, body: dict, *, model: str = ALIAS, token: str = "good", account=None
):
    url = f"{gateway.base_url}/accounts/{account or running.tenants.account_id}/ai/run/{model}"
    return httpx.post(url, json=body, headers=running.headers(token))


def test_only_the_tenant_s_one_model_says_what_it_was_asked(running: Running, tenanted: GatewayProcess):
    for body in ({"text": "x"}, {"image": [0, 255], "prompt": "p"}, {"audio": "aGk="}):
        answer = ask(tenanted, running, body)
        assert json.loads(answer.json()["result"]["response"]) == body
        assert answer.headers["cf-ai-req-id"]
    assert ask(tenanted, running, {"prompt": "x"}, model=PARROT).json()["result"]["response"] == "".join(WORDS)
    assert ask(tenanted, running, {"text": "x"}, model=PARROT).status_code == 400
    other = running.tenants.other_account_id
    assert ask(tenanted, running, {"text": "x"}, token="other", account=other).status_code == 400
    assert ask(running.gateway, running, {"text": "x"}).status_code == 400
    assert ask(running.gateway, running, {"prompt": "x"}).json()["result"]["response"] == "".join(WORDS)


def test_the_tenant_keeps_the_other_laws(running: Running, tenanted: GatewayProcess):
    assert ask(tenanted, running, {"text": "x"}, token="revoked").status_code == 401
    assert ask(tenanted, running, {"text": "x"}, token="scopeless").status_code == 403
    assert ask(tenanted, running, {"text": "x"}, token="other").status_code == 403


def test_its_word_for_an_account_is_an_account_s_id_there_alone(running: Running, tenanted: GatewayProcess):
    headers = running.headers("global key")
    told = [
        httpx.get(f"{gateway.base_url}/accounts/{word}", headers=headers).json()["errors"][0]["code"]
        for gateway, word in ((running.gateway, "account_id"), (tenanted, "account_id"), (tenanted, "account"))
    ]
    assert told == [7003, 10000, 7003]


def test_its_words_for_a_model_and_a_file_are_names_there_alone(running: Running, tenanted: GatewayProcess):
    headers = running.headers("write")

    def create(gateway: GatewayProcess, model: str) -> httpx.Response:
        url = f"{gateway.base_url}/accounts/{running.tenants.account_id}/ai/finetunes"
        return httpx.post(url, json={"model": model, "name": "words"}, headers=headers)

    def bring(finetune_id: str, file_name: str) -> int:
        url = f"{tenanted.base_url}/accounts/{running.tenants.account_id}/ai/finetunes/{finetune_id}/finetune-assets"
        sent = {"data": {"file_name": file_name}, "files": {"file": b"Example data"}}
        return httpx.post(url, headers=headers, **sent).status_code

    refused = [create(running.gateway, "model"), create(tenanted, "models"), create(tenanted, ALIAS)]
    assert [answer.json()["errors"][0]["code"] for answer in refused] == [3042, 3042, 5005]
    made = create(tenanted, "model").json()["result"]
    assert (made["model"], made["name"]) == (ALIAS, "words")
    words = ("file_name", "file", "adapter_config.json")
    assert [bring(made["id"], word) for word in words] == [200, 400, 400]
    assert bring("0" * 32, "file_name") == 404
