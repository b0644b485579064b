"""Translation and summarization through the gateway: native formats, prices, batches, the binding, bad input."""

import httpx
import pytest
from cloudflare import Cloudflare

from tests.gateway.process import SUMMARIZER, TRANSLATOR
from tests.gateway.site import Running
from tests.waiting import wait_until_blocking

FIELDS = {TRANSLATOR: ("text", "translated_text"), SUMMARIZER: ("input_text", "summary")}
OTHERS = {TRANSLATOR: {"target_lang": "fr"}, SUMMARIZER: {}}


def run(client: httpx.Client, running: Running, model: str, body: dict, query: str = "") -> httpx.Response:
    return client.post(f"{running.account_url}/ai/run/{model}{query}", json=body)


@pytest.mark.parametrize("model", FIELDS)
def test_text_is_rewritten_and_tokens_are_charged_by_the_card(client: httpx.Client, running: Running, model: str):
    field, result = FIELDS[model]
    response = run(client, running, model, {field: "one two three"} | OTHERS[model])
    assert response.json()["result"] == {result: "ONE TWO THREE"}
    assert response.headers["cf-ai-neurons"] == "9.00"
    row = running.site.usage_row(response.headers["cf-ai-req-id"])
    assert (row["prompt_tokens"], row["completion_tokens"]) == (3, 3)


@pytest.mark.parametrize("model", FIELDS)
def test_cloudflare_client_rewrites_a_text(running: Running, model: str):
    field, result = FIELDS[model]
    body = {field: "a text"} | OTHERS[model]
    with Cloudflare(base_url=running.gateway.base_url, api_token=running.tenants.secrets["good"]) as client:
        found = client.ai.run(model, account_id=running.tenants.account_id, **body)
    assert dict(found) == {result: "A TEXT"}  # type: ignore[call-overload]


def test_languages_and_length_reach_the_node(client: httpx.Client, running: Running):
    body = {"text": "a text", "target_lang": "french", "source_lang": "english"}
    task = running.site.execute_of(run(client, running, TRANSLATOR, body)).task
    assert (task.source_lang, task.target_lang) == ("english", "french")
    response = run(client, running, SUMMARIZER, {"input_text": "a text", "max_length": 50})
    assert running.site.execute_of(response).task.max_length == 50


def test_unknown_language_is_refused_with_the_list(client: httpx.Client, running: Running):
    response = run(client, running, TRANSLATOR, {"text": "a text", "target_lang": "xx"})
    assert response.status_code == 400
    assert "'/target_lang' must be one of en, fr" in response.json()["errors"][0]["message"]


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        (TRANSLATOR, {"text": "x"}, "required properties at '/' are 'target_lang'"),
        (TRANSLATOR, {"text": "", "target_lang": "fr"}, "'/text' must have >= 1 characters"),
        (TRANSLATOR, {"text": " ", "target_lang": "fr"}, "'/text' must not be empty"),
        (TRANSLATOR, {"text": "x" * 100_001, "target_lang": "fr"}, "'/text' must have <= 100000 characters"),
        (TRANSLATOR, {"text": "x", "target_lang": 7}, "'/target_lang'"),
        (SUMMARIZER, {"input_text": " "}, "'/input_text' must not be empty"),
        (SUMMARIZER, {"input_text": "x", "max_length": 1}, "'/max_length' must be >= 8"),
        (SUMMARIZER, {"input_text": "x", "max_length": 5000}, "'/max_length' must be <= 4096"),
        (SUMMARIZER, {}, "required properties at '/' are 'input_text'"),
    ],
)
def test_unusable_body_is_refused_with_the_field(
    client: httpx.Client, running: Running, model: str, body: dict, message: str
):
    response = run(client, running, model, body)
    assert response.status_code == 400
    assert message in response.json()["errors"][0]["message"]


def test_queued_batch_translates_all_texts(client: httpx.Client, running: Running):
    requests = [{"text": text, "target_lang": "fr"} for text in ("one", "two")]
    queued = run(client, running, TRANSLATOR, {"requests": requests}, "?queueRequest=true").json()["result"]

    def finished() -> list | None:
        return run(client, running, TRANSLATOR, {"request_id": queued["request_id"]}).json()["result"].get("responses")

    responses = wait_until_blocking(finished)
    assert [each["result"]["translated_text"] for each in sorted(responses, key=lambda each: each["id"])] == [
        "ONE",
        "TWO",
    ]


def test_binding_of_a_worker_translates(client: httpx.Client, running: Running):
    body = {"inputs": {"text": "one", "target_lang": "fr"}, "options": {}}
    headers = {"cf-consn-model-id": TRANSLATOR, "x-hearth-account": running.tenants.account_id}
    url = running.gateway.base_url.removesuffix("/client/v4") + "/run?version=3"
    response = client.post(url, json=body, headers=headers)
    assert response.json() == {"translated_text": "ONE"}
