"""The catalog's routes: search pages that end, schemas, the OpenAI list."""

import httpx
import pytest

from tests.gateway.process import ALIAS, CHATTY, PARROT, VECTORS
from tests.gateway.site import Running


def get(client: httpx.Client, running: Running, path: str) -> httpx.Response:
    return client.get(f"{running.account_url}/ai{path}")


def test_search_lists_rows_with_the_model_id_in_name(client: httpx.Client, running: Running):
    answer = get(client, running, "/models/search").json()
    rows = {row["name"]: row for row in answer["result"]}
    assert {PARROT, CHATTY, VECTORS} <= set(rows)
    assert rows[PARROT]["created_at"] == "2026-01-02 03:04:05.000"
    assert rows[PARROT]["task"]["name"] == "Text Generation"
    assert {"property_id": "context_window", "value": "2048"} in rows[PARROT]["properties"]
    assert answer["result_info"]["total_count"] == len(rows)


def test_pages_hold_what_they_say_and_end_with_an_empty_one(client: httpx.Client, running: Running):
    everything = [row["name"] for row in get(client, running, "/models/search").json()["result"]]
    paged = []
    for page in range(1, 100):
        answer = get(client, running, f"/models/search?per_page=2&page={page}").json()
        if not answer["result"]:
            break
        assert answer["result_info"]["count"] == len(answer["result"]) <= 2
        paged += [row["name"] for row in answer["result"]]
    assert paged == everything


def test_search_filters(client: httpx.Client, running: Running):
    def names(query: str) -> list[str]:
        return [row["name"] for row in get(client, running, f"/models/search?{query}").json()["result"]]

    assert names("search=parrot") == [PARROT]
    assert VECTORS in names("task=Text%20Embeddings")
    assert PARROT not in names("task=Text%20Embeddings")
    assert set(names("author=test")) >= {PARROT, CHATTY, VECTORS}
    assert names("source=2") == [VECTORS]


def test_openrouter_format_is_bare_and_priced_per_token(client: httpx.Client, running: Running):
    rows = get(client, running, "/models/search?format=openrouter&search=parrot").json()["data"]
    assert [row["id"] for row in rows] == [PARROT]
    assert float(rows[0]["pricing"]["prompt"]) == pytest.approx(100 / 1e6 * 0.011 / 1000, rel=0.1)
    assert rows[0]["context_length"] == 2048
    (row,) = get(client, running, "/models/search?format=openrouter&search=handy").json()["data"]
    assert row["supported_features"] == ["json_mode", "tools"]


@pytest.mark.parametrize("query", ["page=x", "per_page=-1", "page=9999999999999", "source=cf"])
def test_a_query_that_is_no_number_is_refused(client: httpx.Client, running: Running, query: str):
    answer = get(client, running, f"/models/search?{query}")
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, 3003)


def test_schema_has_what_strict_clients_demand(client: httpx.Client, running: Running):
    for model in (PARROT, CHATTY, VECTORS, ALIAS):
        result = get(client, running, f"/models/schema?model={model}").json()["result"]
        for half in ("input", "output"):
            assert isinstance(result[half]["type"], str)
            assert isinstance(result[half]["description"], str)
            assert isinstance(result[half]["additionalProperties"], bool)


@pytest.mark.parametrize(
    ("query", "expected"),
    [("", (400, 3003)), ("?model=@cf/no/thing", (400, 5007)), ("?model=../x", (404, 3042))],
)
def test_schema_of_no_model_is_refused(client: httpx.Client, running: Running, query: str, expected: tuple):
    answer = get(client, running, f"/models/schema{query}")
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == expected


def test_openai_list_and_single_model(client: httpx.Client, running: Running):
    listed = get(client, running, "/v1/models").json()
    assert listed["object"] == "list"
    assert {PARROT, VECTORS} <= {row["id"] for row in listed["data"]}
    for written in (PARROT, PARROT.replace("/", "%2F"), PARROT.replace("@", "%40")):
        assert get(client, running, f"/v1/models/{written}").json()["owned_by"] == "test"
    assert get(client, running, f"/v1/models/{ALIAS}").json()["id"] == ALIAS
    missing = get(client, running, "/v1/models/@cf/no/thing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (400, 5007)
