"""Classification, reranking and moderation through the gateway: native and OpenAI's formats, prices, bad input."""

import httpx
import pytest
from cloudflare import Cloudflare
from openai import OpenAI

from tests.gateway.process import MULTI_VECTORS, PARROT, RERANKER, SENTIMENT, VECTORS
from tests.gateway.site import Running

LONG, MIDDLE, SHORT = "x" * 90, "x" * 50, "x" * 10  # the fake node's scores: 0.9, 0.5, 0.1


def run(client: httpx.Client, running: Running, model: str, **options) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/run/{model}", **options)


def rerank(client: httpx.Client, running: Running, **fields) -> httpx.Response:
    body = {"model": RERANKER, "query": "which", "documents": [SHORT, LONG, MIDDLE]} | fields
    return client.post(f"{running.account_url}/ai/v1/rerank", json=body)


def moderate(client: httpx.Client, running: Running, **fields) -> httpx.Response:
    return client.post(f"{running.account_url}/ai/v1/moderations", json={"model": SENTIMENT, "input": LONG} | fields)


def test_text_gets_a_score_for_each_label(client: httpx.Client, running: Running):
    response = run(client, running, SENTIMENT, json={"text": LONG})
    assert response.status_code == 200, response.text
    assert response.json()["result"] == [
        {"label": "CLEAN", "score": pytest.approx(0.1)},
        {"label": "RUDE", "score": pytest.approx(0.9)},
    ]


def test_cloudflare_client_classifies_a_text(running: Running):
    with Cloudflare(base_url=running.gateway.base_url, api_token=running.site.tenants.secrets["good"]) as client:
        result = client.ai.run(SENTIMENT, account_id=running.site.tenants.account_id, text=LONG)
    assert [dict(each)["label"] for each in result] == ["CLEAN", "RUDE"]


def test_contexts_are_ranked_and_named_by_position(client: httpx.Client, running: Running):
    body = {"query": "which", "contexts": [{"text": SHORT}, {"text": LONG}, {"text": MIDDLE}]}
    response = run(client, running, RERANKER, json=body).json()["result"]["response"]
    assert response == [{"id": 1, "score": 0.9}, {"id": 2, "score": 0.5}, {"id": 0, "score": 0.1}]
    best = run(client, running, RERANKER, json=body | {"top_k": 1}).json()["result"]["response"]
    assert best == [{"id": 1, "score": 0.9}]


def test_embedding_model_of_two_formats_scores_contexts(client: httpx.Client, running: Running):
    body = {"query": "which", "contexts": [{"text": SHORT}, {"text": LONG}]}
    response = run(client, running, MULTI_VECTORS, json=body).json()["result"]
    assert response == {"response": [{"id": 1, "score": 0.9}, {"id": 0, "score": 0.1}]}
    vectors = run(client, running, MULTI_VECTORS, json={"text": [SHORT, LONG]}).json()["result"]
    assert vectors["shape"] == [2, 8]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contexts": []}, "'/contexts' must have >= 1 items"),
        ({"contexts": [{"text": ""}]}, "'/contexts/0/text' must have >= 1 characters"),
        ({"contexts": [{"text": "  "}]}, "'/contexts/0/text' must not be empty"),
        ({"contexts": [{}]}, "required properties at '/contexts/0' are 'text'"),
        ({"contexts": [{"text": "x"}] * 1001}, "'/contexts' must have <= 1000 items"),
        ({"query": ""}, "'/query' must have >= 1 characters"),
        ({"query": None}, "'/query'"),
        ({"top_k": 0}, "'/top_k' must be >= 1"),
    ],
)
def test_unusable_contexts_are_refused_with_the_field(
    client: httpx.Client, running: Running, change: dict, message: str
):
    body = {"query": "which", "contexts": [{"text": SHORT}]} | change
    response = run(client, running, RERANKER, json=body)
    assert response.status_code == 400
    assert message in response.json()["errors"][0]["message"]


def test_prompt_tokens_are_charged(client: httpx.Client, running: Running):
    response = run(client, running, SENTIMENT, json={"text": "one two three"})
    assert response.headers["cf-ai-neurons"] == "3.00"
    row = running.site.usage_row(response.headers["cf-ai-req-id"])
    assert (row["task"], row["prompt_tokens"]) == ("text-classification", 3)


# ── rerank ──


def test_documents_are_ranked_by_relevance(client: httpx.Client, running: Running):
    response = rerank(client, running).json()
    assert [each["index"] for each in response["results"]] == [1, 2, 0]
    assert response["results"][0] == {"index": 1, "relevance_score": 0.9}
    assert response["model"] == RERANKER
    assert response["usage"]["total_tokens"] == 3


def test_best_documents_are_returned_with_their_texts(client: httpx.Client, running: Running):
    response = rerank(client, running, documents=[SHORT, {"text": LONG}], top_n=1, return_documents=True).json()
    assert response["results"] == [{"index": 1, "relevance_score": 0.9, "document": {"text": LONG}}]


def test_embedding_model_ranks_documents(client: httpx.Client, running: Running):
    response = rerank(client, running, model=VECTORS).json()
    assert [each["index"] for each in response["results"]] == [1, 2, 0]


def test_openai_client_posts_to_rerank(running: Running):
    with OpenAI(base_url=f"{running.account_url}/ai/v1", api_key=running.site.tenants.secrets["good"]) as client:
        body = {"model": RERANKER, "query": "which", "documents": [SHORT, LONG]}
        response = client.post("/rerank", body=body, cast_to=object)
    assert response["results"][0]["index"] == 1


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"documents": []}, 400, "documents"),
        ({"documents": [""]}, 400, "must not be empty"),
        ({"documents": [{"title": "x"}]}, 400, "'/documents/0/text'"),
        ({"documents": ["x"] * 1001}, 400, "'/documents' must have <= 1000 items"),
        ({"query": ""}, 400, "'/query'"),
        ({"top_n": 0}, 400, "'/top_n' must be >= 1"),
        ({"model": PARROT}, 400, "Text Generation"),
    ],
)
def test_unusable_rerank_request_is_refused(
    client: httpx.Client, running: Running, change: dict, status: int, message: str
):
    response = rerank(client, running, **change)
    assert response.status_code == status, response.text
    assert message in response.text


# ── moderations ──


def test_openai_client_moderates_texts(running: Running):
    with OpenAI(base_url=f"{running.account_url}/ai/v1", api_key=running.site.tenants.secrets["good"]) as client:
        response = client.moderations.create(model=SENTIMENT, input=[LONG, SHORT])
    rude, clean = response.results
    assert (rude.flagged, clean.flagged) == (True, False)
    assert rude.categories.to_dict() == {"RUDE": True}
    assert rude.category_scores.to_dict() == {"RUDE": pytest.approx(0.9)}
    assert (response.model, response.id.startswith("modr-")) == (SENTIMENT, True)


@pytest.mark.parametrize("value", [LONG, [LONG], [{"type": "text", "text": LONG}]])
def test_input_of_every_form_is_moderated(client: httpx.Client, running: Running, value: object):
    (result,) = moderate(client, running, input=value).json()["results"]
    assert result["flagged"] is True
    assert result["category_applied_input_types"] == {"RUDE": ["text"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": []}, "'/input' must have >= 1 items"),
        ({"input": [""]}, "'/input/0' must not be empty"),
        ({"input": [{"type": "image_url", "image_url": {"url": "x"}}]}, "'/input/0/type' must be text"),
        ({"input": [7]}, "'/input/0'"),
        ({"model": RERANKER}, "no labels"),
        ({"model": PARROT}, "Text Generation"),
    ],
)
def test_unusable_moderation_request_is_refused(client: httpx.Client, running: Running, change: dict, message: str):
    response = moderate(client, running, **change)
    assert response.status_code == 400, response.text
    assert message in response.text
