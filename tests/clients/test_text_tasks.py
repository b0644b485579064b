"""Text tasks on a whole platform: models with random weights, published under the names of public models, run with the
official clients, in queued batches and for the Worker binding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cloudflare import Cloudflare
from openai import OpenAI

from tests.fakes.tiny_models import tiny_classifier, tiny_m2m100, tiny_summarizer
from tests.platform import Platform, wait_for

pytestmark = pytest.mark.full

SENTIMENT, RERANKER = "@cf/huggingface/distilbert-sst-2-int8", "@cf/baai/bge-reranker-base"
TRANSLATOR, SUMMARIZER = "@cf/meta/m2m100-1.2b", "@cf/facebook/bart-large-cnn"
MAKERS: dict[str, Callable[[Path], Path]] = {
    SENTIMENT: lambda folder: tiny_classifier(folder, "distilbert", ("NEGATIVE", "POSITIVE")),
    RERANKER: lambda folder: tiny_classifier(folder, "xlm-roberta", ("LABEL_0",)),
    TRANSLATOR: tiny_m2m100,
    SUMMARIZER: tiny_summarizer,
}


@pytest.fixture(scope="module")
def published(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Platform:
    for name, make in MAKERS.items():
        platform.hearth("model", "publish", str(make(tmp_path_factory.mktemp("model"))), "--name", name)
    return platform


def run(published: Platform, model: str, **inputs: object) -> object:
    with Cloudflare(base_url=published.base_url, api_token=published.api_token, timeout=120) as client:
        return client.ai.run(model, account_id=published.account_id, **inputs)  # type: ignore[call-overload]


def test_cloudflare_client_classifies(published: Platform):
    labels = [dict(each) for each in run(published, SENTIMENT, text="it was a good film")]  # type: ignore[attr-defined]
    assert [each["label"] for each in labels] == ["NEGATIVE", "POSITIVE"]
    assert sum(each["score"] for each in labels) == pytest.approx(1)


def test_cloudflare_client_reranks(published: Platform):
    contexts = [{"text": "a warm place"}, {"text": "the man is eating"}, {"text": "rain"}]
    body = {"query": "where is food", "contexts": contexts, "top_k": 2}
    first, second = dict(run(published, RERANKER, extra_body=body))["response"]  # type: ignore[call-overload]
    assert first["score"] >= second["score"]


def test_cloudflare_client_translates_and_unknown_languages_are_listed(published: Platform):
    result = run(published, TRANSLATOR, text="the man is eating", source_lang="english", target_lang="french")
    assert isinstance(dict(result)["translated_text"], str)  # type: ignore[call-overload]
    with pytest.raises(Exception, match="'/target_lang' must be one of af, am, ar"):
        run(published, TRANSLATOR, text="the man is eating", target_lang="klingon")


def test_cloudflare_client_summarizes(published: Platform):
    result = run(published, SUMMARIZER, input_text="the man is eating food in the rain", max_length=16)
    assert dict(result)["summary"]  # type: ignore[call-overload]


def test_openai_client_moderates_and_reranks(published: Platform):
    with OpenAI(base_url=f"{published.ai_url()}/v1", api_key=published.api_token, timeout=120) as client:
        (result,) = client.moderations.create(model=SENTIMENT, input="bad film").results
        assert set(result.category_scores.to_dict()) == {"NEGATIVE", "POSITIVE"}
        body = {
            "model": published.embed_model,
            "query": "a place to eat",
            "documents": ["a parking lot", "a restaurant"],
        }
        response = client.post("/rerank", body=body, cast_to=object)
    assert response["results"][0]["index"] == 1  # type: ignore[index]


def test_queued_batch_and_binding_run_a_model_in_its_process(published: Platform):
    with published.client() as client:
        url = f"{published.ai_url()}/run/{SENTIMENT}"
        requests = [{"text": "a good film"}, {"text": "a bad film"}]
        queued = client.post(f"{url}?queueRequest=true", json={"requests": requests}).json()["result"]

        def finished() -> list[dict] | None:
            return client.post(url, json={"request_id": queued["request_id"]}).json()["result"].get("responses")

        responses = wait_for("the batch is finished", finished)
        assert all(len(each["result"]) == 2 for each in responses)
        headers = {"cf-consn-model-id": TRANSLATOR, "x-hearth-account": published.account_id}
        inputs = {"text": "the man", "target_lang": "fr"}
        origin = published.base_url.removesuffix("/client/v4")
        response = client.post(f"{origin}/run?version=3", json={"inputs": inputs, "options": {}}, headers=headers)
        assert "translated_text" in response.json()


def test_tokens_are_charged_by_the_public_price(published: Platform):
    with published.client() as client:
        response = client.post(f"{published.ai_url()}/run/{TRANSLATOR}", json={"text": "the man", "target_lang": "fr"})
    request_id = response.headers["cf-ai-req-id"]
    (row,) = wait_for("the usage is recorded", lambda: published.usage_rows(request_id))
    num_tokens = row["prompt_tokens"] + row["completion_tokens"]
    assert row["prompt_tokens"] > 0
    assert row["micro_neurons"] == num_tokens * 31050
